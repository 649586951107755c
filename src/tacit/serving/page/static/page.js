// Refreshes the figures, asks the try-it question, and posts buttons. Nothing is loaded from elsewhere.
"use strict";

const figures = document.getElementById("figures");
const SECONDS = 3;

async function refresh() {
  // Not while somebody is on a button of it: replacing it would take the focus away.
  if (document.hidden || figures.contains(document.activeElement)) return;
  const answer = await fetch(figures.dataset.refresh, { headers: { accept: "text/html" } });
  if (answer.ok) figures.innerHTML = await answer.text();
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

const form = document.getElementById("try");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const shown = document.getElementById("answer");
  const button = form.querySelector("button");
  button.disabled = true;
  shown.textContent = "…";
  try {
    const found = await post(form.action, {
      prompt: form.prompt.value,
      max_tokens: Number(form.max_tokens.value),
    });
    shown.textContent = found.text;
  } catch (problem) {
    shown.textContent = problem.message;
  } finally {
    button.disabled = false;
  }
});

figures.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  button.disabled = true;
  try {
    const found = await post(button.dataset.post, {});
    button.textContent = found.verified ? "Verified" : "Not verified";
  } catch (problem) {
    button.textContent = problem.message;
  }
  button.blur();
});

setInterval(() => refresh().catch(() => {}), SECONDS * 1000);
