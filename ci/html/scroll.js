// On a phone a figure is wider than the screen and scrolls (book.css): the keyboard must reach it to scroll it.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";
  const narrow = matchMedia("(max-width: 600px)");
  const reach = () => {
    for (const figure of document.querySelectorAll(".bd-content figure:has(> img)")) {
      if (narrow.matches) figure.tabIndex = 0;
      else figure.removeAttribute("tabindex");
    }
  };
  reach();
  narrow.addEventListener("change", reach);
});
