// The order of what the search box finds. Sphinx's own numbers, and what its rules leave out: it
// takes "--batch-size" for two words, and every page with both is as good as the option itself; it
// does not find "early stopping" in EarlyStopping, and finds "lr" in allreduce.
const asked = (new URLSearchParams(window.location.search).get("q") || "").trim().toLowerCase();
const joined = (text) => text.toLowerCase().replace(/[\s_-]/g, "");
const words = (text) => text.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter((word) => word);
const HIDDEN = -1000; // site.css

// Whether each word of the question begins a word of a name; EarlyStopping is one word and two.
const begins = (name) => {
  const parts = words(`${name} ${name.replace(/([a-z])([A-Z])/g, "$1 $2")}`);
  return words(asked).every((word) => parts.some((part) => part.startsWith(word)));
};

var Scorer = {
  score: ([page, title, anchor, about, score]) => {
    const name = title.toLowerCase();
    const last = name.split(".").pop();
    if (asked.startsWith("--") && last === asked) {
      return score + (page === "commands/tutorial_dl-train" ? 210 : 200); // an option
    }
    if (asked.startsWith("--") && page.startsWith("commands/")) return score + 20;
    if (joined(name) === joined(asked)) return score + 100; // a term of the glossary, a page
    if (joined(last) === joined(asked)) return score + 40; // a public name
    if (about && !begins(`${title} ${about}`)) return HIDDEN;
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

// Sphinx reads a page for its excerpt, which a browser refuses where the site is opened from disk.
if (window.location.protocol === "file:") {
  const script = document.createElement("script");
  script.src = "_static/texts.js"; // docs/site/texts.py
  const loaded = new Promise((done) => (script.onload = done));
  document.head.append(script);
  window.fetch = (page) => loaded.then(() => new Response(texts[page.replace(/^\.\//, "")]));
}
