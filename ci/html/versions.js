// The list of versions, where the site has one: switcher.json lies above the folder of this version.
document.addEventListener("DOMContentLoaded", async () => {
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const site = new URL("../", root);
  const place = document.querySelector(".bd-sidebar-primary .sidebar-primary-items__start");
  if (!place || location.protocol === "file:") return;
  const answer = await fetch(new URL("switcher.json", site)).catch(() => null);
  if (!answer?.ok) return;
  const label = document.createElement("label");
  const list = document.createElement("select");
  label.className = "version-list sidebar-primary-item";
  label.append("Version ", list);
  for (const { name, version, url, preferred } of await answer.json()) {
    const own = version === DOCUMENTATION_OPTIONS.VERSION;
    list.add(new Option(preferred ? `${name} (latest)` : name, new URL(url, site).href, own, own));
  }
  list.addEventListener("change", async () => {
    const same = new URL(location.href.slice(root.href.length), list.value);
    const there = await fetch(same, { method: "HEAD" }).catch(() => null);
    location.href = there?.ok ? same.href : list.value;
  });
  place.prepend(label);
});
