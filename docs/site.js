// A name of its own for the buttons of each code block, which Material adds when it shows a page.
let blocks = 0;
new MutationObserver(() => {
  for (const nav of document.querySelectorAll(".md-code__nav:not([aria-label])"))
    nav.setAttribute("aria-label", `code block ${++blocks}`);
}).observe(document.documentElement, { childList: true, subtree: true });
