// The filter of a chapter's claims: words, and how the number was measured. Without it the page is complete.
// It is in the address as ?filter=…&how=…, since ?q=… opens the site's search.

const HOWS = ["counted", "compared", "virtual clock", "published"]

const FORM = `<form role="search">
  <label>Filter these claims <input type="search" name="filter" autocomplete="off" placeholder="bytes, stage 3, §5 …"></label>
  <label>How measured <select name="how"><option value="">any way</option>
    ${HOWS.map((how) => `<option>${how}</option>`).join("")}</select></label>
  <output aria-live="polite"></output></form>`

function filter(root) {
  root.innerHTML = FORM
  const form = root.querySelector("form"), { filter: words, how } = form.elements, output = root.querySelector("output")
  const demos = [...document.querySelectorAll(".claims-demo")]
  const rows = [...document.querySelectorAll(".claims-demo tr[id]")].map((row) => {
    const [what, , , , kind] = row.cells
    const demo = row.closest(".claims-demo").querySelector("h2").textContent
    const text = [demo, what.textContent, row.dataset.formula, kind.textContent].join(" ").toLowerCase()
    return { row, how: kind.textContent, text }
  })

  function apply() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), active = wanted.length > 0 || how.value !== ""
    let shown = 0
    for (const each of rows) {
      const fits = (!how.value || each.how === how.value) && wanted.every((word) => each.text.includes(word))
      each.row.hidden = !fits
      shown += fits
    }
    for (const part of [...document.querySelectorAll(".claims-demo .claims"), ...demos]) {
      part.hidden = !part.querySelector("tr[id]:not([hidden])")
    }
    output.textContent = active ? `${shown} of ${rows.length} claims` : `${rows.length} claims`
    const address = new URL(location)
    for (const field of [words, how]) {
      if (field.value) address.searchParams.set(field.name, field.value)
      else address.searchParams.delete(field.name)
    }
    if (address.href !== location.href) history.replaceState(history.state, "", address)
  }

  const asked = new URLSearchParams(location.search)
  words.value = asked.get("filter") ?? ""
  how.value = HOWS.includes(asked.get("how")) ? asked.get("how") : ""
  form.addEventListener("input", apply)
  form.addEventListener("submit", (event) => event.preventDefault())
  apply()
}

for (const root of document.querySelectorAll(".claims-filter")) filter(root)
