// Refreshes the figures, asks the try-it question, and verifies. Nothing is loaded from elsewhere.
"use strict";

const MILLISECONDS = 3000;
const figures = document.getElementById("figures");
const live = document.getElementById("live");
const said = document.getElementById("said");
const form = document.getElementById("try");
let timer;

async function refresh() {
  const chosen = getSelection();
  // Not under the hands of somebody who copies a number.
  if (document.hidden || (!chosen.isCollapsed && figures.contains(chosen.anchorNode))) return;
  try {
    const answer = await fetch(figures.dataset.refresh);
    if (!answer.ok) throw new Error(answer.statusText);
    const found = await answer.text();
    const held = figures.contains(document.activeElement) ? document.activeElement.id : "";
    figures.innerHTML = found;
    if (held) document.getElementById(held)?.focus();
    live.textContent = "live";
    live.classList.remove("hot");
  } catch {
    if (!live.classList.contains("hot")) {
      live.textContent = `not reached since ${new Date().toLocaleTimeString()}`;
    }
    live.classList.add("hot");
  }
}

async function refreshNowAndThen() {
  clearTimeout(timer);
  await refresh();
  clearTimeout(timer);
  timer = setTimeout(refreshNowAndThen, MILLISECONDS);
}

async function post(url, content) {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(content),
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error.message);
  return found;
}

function element(name, classes, text) {
  const made = document.createElement(name);
  made.className = classes;
  made.textContent = text;
  return made;
}

// Not `disabled`, which would take the focus away from who pressed it.
function begin(button) {
  if (button.getAttribute("aria-disabled")) return false;
  button.setAttribute("aria-disabled", "true");
  return true;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const shown = document.getElementById("answer");
  const button = form.querySelector("button");
  if (!begin(button)) return;
  const prompt = form.elements.prompt.value;
  const began = performance.now();
  shown.textContent = "…";
  try {
    const found = await post(form.action, { prompt, max_tokens: Number(form.elements.max_tokens.value) });
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    shown.replaceChildren(
      element("span", "quiet", prompt),
      element("span", "completion", found.text),
      element("small", "quiet", `${found.tokens} token${found.tokens === 1 ? "" : "s"} in ${seconds} s`),
    );
  } catch (problem) {
    shown.replaceChildren(element("span", "hot", problem.message));
  } finally {
    button.removeAttribute("aria-disabled");
  }
  refreshNowAndThen();
});

form.elements.prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});

figures.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button || !begin(button)) return;
  said.textContent = "";
  let outcome;
  try {
    const found = await post(button.dataset.post, {});
    outcome = found.verified ? "Verified" : "Not verified";
    said.textContent = found.verified ? `Verified: all ${found.entries.toLocaleString("en")} entries.` : found.problem;
  } catch (problem) {
    outcome = "Not verified";
    said.textContent = problem.message;
  }
  await refreshNowAndThen();
  const fresh = document.getElementById(button.id);
  if (fresh) fresh.textContent = outcome; // until the next refresh
  setTimeout(() => { said.textContent = ""; }, 2 * MILLISECONDS);
});

document.addEventListener("visibilitychange", refreshNowAndThen);
timer = setTimeout(refreshNowAndThen, MILLISECONDS);
