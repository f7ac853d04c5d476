// Filters the codes of the page of errors, and opens a code that an address names in any spelling.
addEventListener("DOMContentLoaded", () => {
  const field = document.querySelector(".lookup input");
  if (!field) return;
  const codes = [...document.querySelectorAll(".lookup-codes a")];
  const filter = () => {
    const wanted = field.value.trim().toLowerCase();
    for (const code of codes) code.parentElement.hidden = !code.textContent.toLowerCase().includes(wanted);
  };
  field.addEventListener("input", filter);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const wanted = field.value.trim().toLowerCase();
    const shown = codes.filter((code) => !code.parentElement.hidden);
    const found = shown.find((code) => code.textContent.toLowerCase() === wanted) ?? shown[0];
    if (found) location.hash = found.hash;
  });
  const named = location.hash.slice(1);
  if (named !== named.toLowerCase()) location.hash = named.toLowerCase();
});
