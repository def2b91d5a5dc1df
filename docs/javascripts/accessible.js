// Tables and pictures that scroll get the keyboard's focus, and the buttons of a code block a name of their own.
document$.subscribe(() =>
  setTimeout(() => {
    document.querySelectorAll(".md-typeset__scrollwrap, p:has(> .nb-picture)").forEach(wide => {
      if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0
    })
    document.querySelectorAll(".md-code__nav").forEach((buttons, number) => {
      buttons.setAttribute("aria-label", `code block ${number + 1}`)
    })
  }, 100)
)
