// Names that axe asks for: of the search, and of the buttons of each code block, which Material adds when it shows a page.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
let blocks = 0;
new MutationObserver(() => {
  for (const nav of document.querySelectorAll(".md-code__nav:not([aria-label])"))
    nav.setAttribute("aria-label", `code block ${++blocks}`);
}).observe(document.documentElement, { childList: true, subtree: true });
