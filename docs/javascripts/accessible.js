// What the theme adds to a page when it is shown: tables that scroll get the keyboard's focus, buttons of a code block a
// name of their own.
document$.subscribe(() =>
  setTimeout(() => {
    document.querySelectorAll(".md-typeset__scrollwrap").forEach(table => {
      if (table.scrollWidth > table.clientWidth) table.tabIndex = 0
    })
    document.querySelectorAll(".md-code__nav").forEach((buttons, number) => {
      buttons.setAttribute("aria-label", `code block ${number + 1}`)
    })
  }, 100)
)
