// The order of what the search box finds. Sphinx's own numbers, and what its rules leave out: it
// takes "--batch-size" for two words, and every page with both is as good as the option itself.
const asked = (new URLSearchParams(window.location.search).get("q") || "").trim().toLowerCase();

var Scorer = {
  score: ([page, title, anchor, about, score]) => {
    const name = title.toLowerCase();
    const last = name.split(".").pop();
    if (asked.startsWith("--") && last === asked) {
      return score + (page === "commands/tutorial_dl-train" ? 210 : 200); // an option
    }
    if (asked.startsWith("--") && page.startsWith("commands/")) return score + 20;
    if (name === asked) return score + 100; // a term of the glossary, a page
    if (last === asked) return score + 40; // a public name
    if (page.startsWith("api/")) return score - 10; // explanations before signatures
    if (page.startsWith("notebooks/")) return score + 5;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
