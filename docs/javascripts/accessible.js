// Tables and pictures that scroll get the keyboard's focus, and the buttons of a code block a name of their own.
const sizes = new ResizeObserver((changes) =>
  changes.forEach(({ target }) => {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0
    else target.removeAttribute("tabindex")
  }),
)
document$.subscribe(() =>
  setTimeout(() => {
    document.querySelectorAll(".md-typeset__scrollwrap, p:has(> .nb-picture)").forEach((wide) => sizes.observe(wide))
    document.querySelectorAll(".md-code__nav").forEach((buttons, number) => {
      buttons.setAttribute("aria-label", `code block ${number + 1}`)
    })
  }, 100)
)
