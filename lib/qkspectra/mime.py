"""What the cells of a chapter say to the build, by media type; notebooks show the preview that comes with each."""

VALUES_MIME = "application/vnd.qkspectra.values+json"
TABLE_MIME = "application/vnd.qkspectra.table+json"
FIGURE_MIME = "application/vnd.qkspectra.figure+json"
HTML_MIME = "application/vnd.qkspectra.html+json"
