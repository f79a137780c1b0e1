"""Byte ranges of one file at one commit of a Hub repository.

What a part of a file can be checked against is checked: the commit, length and hash that the Hub states for the file
are those of the listing, and each answer is exactly the range that was asked for. That its bytes are what was stored
rests on TLS and the storage itself; only a whole file can be compared with its SHA-256 (`hub.fetch` does).
"""

import threading
import time
from urllib.parse import urlsplit

from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from qkspectra.errors import InputError
from qkspectra.weights.hub import File, Listing, quiet, refusals

WAITS = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each new attempt at a transfer that failed; counted anew once a transfer got somewhere."""

SLOW, LEAST = 20.0, 1 << 16
"""A transfer of fewer than `LEAST` bytes in `SLOW` seconds is given up and tried again."""


class _CutShort(Exception):
    """A transfer that ended, or crept, before the range was complete."""


class Ranges:
    """Reads ranges of a file, over the client's shared connections; any number of threads may do so at once.

    Args:
        listing: of the repository, at one commit.
        file: path in it.
    """

    def __init__(self, listing: Listing, file: str) -> None:
        self._listing, self._file = listing, file
        self._url = hf_hub_url(listing.name, file, revision=listing.commit, endpoint=constants.ENDPOINT)
        self._lock = threading.Lock()
        self._location: str | None = None

    @property
    def listed(self) -> File:
        """What the Hub lists of the file."""
        return self._listing.files[self._file]

    def read(self, start: int, stop: int) -> bytearray:
        """Bytes `start` to `stop - 1`.

        A transfer that breaks off or creeps goes on where it stopped; a busy Hub is asked again after the wait it
        calls for, and an address that has expired is asked for again.

        Raises:
            InputError: the Hub keeps failing, does not serve ranges, or serves another file than it lists.
        """
        if not 0 <= start <= stop <= self.listed.size:
            raise InputError(f"{self._called} ends before byte {stop}, which its header points to: it is damaged")
        data = bytearray()
        waits, renewed = iter(WAITS), False
        with quiet(), refusals(self._listing.name, self._listing.commit):
            while len(data) < stop - start:
                before, location = len(data), self._locate()
                try:
                    self._transfer(location, start + before, stop, data)
                except errors.HfHubHTTPError as error:
                    if error.response.status_code != 403 or renewed:
                        raise
                    self._forget(location)
                    renewed = True
                except (errors.HTTPError, _CutShort) as error:
                    if len(data) - before >= LEAST:
                        waits, renewed = iter(WAITS), False
                    wait = next(waits, None)
                    if wait is None:
                        kind = "too slow, or too short" if isinstance(error, _CutShort) else type(error).__name__
                        raise InputError(
                            f"reading {self._called} broke off {len(WAITS) + 1} times ({kind}): try again later"
                        ) from None
                    time.sleep(wait)
        return data

    @property
    def _called(self) -> str:
        return f"{self._file} of {self._listing.name} at {self._listing.commit[:12]}"

    def _locate(self) -> str:
        """Where the file's bytes are, once the Hub's answer agrees with its listing."""
        with self._lock:
            if self._location is None:
                stated = get_hf_file_metadata(
                    self._url, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, retry_on_errors=True
                )
                for what, found, expected in (
                    ("commit", stated.commit_hash, self._listing.commit),
                    ("length", stated.size, self.listed.size),
                    ("hash", stated.etag, self.listed.digest),
                ):
                    if found != expected:
                        raise InputError(
                            f"the Hub lists {self._called} with {what} {expected} and serves {found}: try again later"
                        )
                self._location = stated.location
            return self._location

    def _forget(self, location: str) -> None:
        """An address that is signed for some minutes has expired, unless another thread has renewed it since."""
        with self._lock:
            if self._location == location:
                self._location = None

    def _transfer(self, location: str, start: int, stop: int, data: bytearray) -> None:
        """Appends bytes `start` to `stop - 1`, or as many as arrive, to `data`."""
        at_home = urlsplit(location).netloc == urlsplit(self._url).netloc
        headers = build_hf_headers() if at_home else {}  # a signed address elsewhere is not shown the token
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        wanted = len(data) + stop - start
        with http_stream_backoff(
            "GET", location, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, retry_on_exceptions=()
        ) as response:
            hf_raise_for_status(response)
            answer = response.headers.get("Content-Range")
            if response.status_code != 206 or answer != f"bytes {start}-{stop - 1}/{self.listed.size}":
                raise InputError(
                    f"the server of {self._called} answers bytes {start} to {stop - 1} with {response.status_code} and"
                    f" {answer or 'no range'}: read it whole, with --download"
                )
            since, mark = time.monotonic(), len(data)
            for chunk in response.iter_raw():
                data += chunk
                if time.monotonic() - since > SLOW:
                    if len(data) - mark < LEAST:
                        break
                    since, mark = time.monotonic(), len(data)
        if len(data) > wanted:
            raise InputError(
                f"the server of {self._called} sends more than was asked for: read it whole, with --download"
            )
        if len(data) < wanted:
            raise _CutShort
