"use strict";
// What every page can do beyond links and forms: local times, keyboard shortcuts, notices that disappear.

function localTimes(root) {
  // Short: only the hour today, the day and hour this year, and the date in other years. The title has the exact time.
  const now = new Date(), hour = { hour: "numeric", minute: "2-digit" }, day = { month: "short", day: "numeric" };
  const formatOf = (date) => {
    if (date.toDateString() === now.toDateString()) return hour;
    return date.getFullYear() === now.getFullYear() ? { ...day, ...hour } : { ...day, year: "numeric" };
  };
  for (const time of root.querySelectorAll("time[datetime]:not([data-local])")) {
    time.dataset.local = "";
    const date = new Date(time.dateTime);
    time.textContent = new Intl.DateTimeFormat(undefined, formatOf(date)).format(date);
  }
}

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable], dialog[open]") !== null;
}

const PLACES = { h: "/", c: "/ui/chat", a: "/ui/agents", p: "/ui/people", r: "/ui/runs", s: "/ui/search", m: "/ui/models" };
let waitsForPlace = false;

function goTo(path) {
  location.assign(document.body.dataset.base + path);
}

// `j` and `k` walk through the elements with data-item. `a`, `e` and `r` press the button of the selected element that has this key in data-key.
function moveSelection(step) {
  const items = [...document.querySelectorAll("[data-item]")];
  if (!items.length) return;
  const now = items.indexOf(document.querySelector("[data-item].selected"));
  const first = Math.max(0, items.findIndex((item) => item.matches(".suggestion")));  // suggestions wait for an answer
  const next = now < 0 ? items[first] : items[Math.max(0, Math.min(items.length - 1, now + step))];
  items[now]?.classList.remove("selected");
  next.classList.add("selected");
  const target = next.matches("a, button, [tabindex]") ? next : next.querySelector("a, button, summary");
  target?.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  const key = event.key;
  if (waitsForPlace) {
    waitsForPlace = false;
    if (PLACES[key]) goTo(PLACES[key]);
    return;
  }
  if (key === "g") waitsForPlace = true;
  else if (key === "j") moveSelection(1);
  else if (key === "k") moveSelection(-1);
  else if (key === "?") document.getElementById("keys")?.showModal();
  else if (key === "/") {
    event.preventDefault();
    const box = document.querySelector("input[type=search]");
    if (box) box.focus(); else goTo("/ui/search");
  } else if ("aer".includes(key)) {
    const item = event.target.closest?.("[data-item]") ?? document.querySelector("[data-item].selected");
    const button = item?.querySelector(`[data-key="${key}"]`);
    if (!button) return;
    event.preventDefault();
    button.click();
    if (button.matches("summary")) button.parentElement.querySelector("input:not([type=hidden]), textarea")?.focus();
  }
});

// Ask before a form that deletes or discards something: data-confirm is the question.
document.addEventListener("submit", (event) => {
  const words = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (words && !window.confirm(words)) event.preventDefault();
}, true);

// A form is sent once, also after a double click: the second answer would say that the first one changed everything already.
// At the window, this comes after the scripts that send a form themselves.
window.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if ("sent" in form.dataset) return event.preventDefault();
  form.dataset.sent = "";
  setTimeout(() => delete form.dataset.sent, 10000);  // the answer may be a file, which leaves the page
});
window.addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });

// A textarea with a limit says how long its text is: data-limit is in characters, data-length the id of the element that shows it.
function showLength(area) {
  const { limit, length } = area.dataset;
  if (!length) return;
  const said = document.getElementById(length), used = [...area.value].length;
  said.textContent = `${used} of ${limit} characters`;
  said.classList.toggle("error", used > Number(limit));
}
document.addEventListener("input", (event) => showLength(event.target));

// A small form that opens at a button gets the focus, and closes with Escape or a click elsewhere.
document.addEventListener("toggle", (event) => {
  const { target } = event;
  if (target.open && target.matches("details[data-focus]") && !target.contains(document.activeElement?.form ?? null)) target.querySelector("input:not([type=hidden]), textarea")?.focus();
}, true);
function closeDrops(except) {
  for (const drop of document.querySelectorAll("details.drop[open]")) if (!drop.contains(except)) drop.open = false;
}
document.addEventListener("click", (event) => closeDrops(event.target));
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDrops(null); });

// Copy the text in data-copy.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = "Copied"; });
});

document.addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  // The text may have been typed before this script loaded, or kept by the browser from an earlier visit.
  document.querySelectorAll("[data-length]").forEach(showLength);
  for (const toast of document.querySelectorAll(".toast")) setTimeout(() => toast.remove(), 10000);
});
document.addEventListener("htmx:afterSwap", (event) => localTimes(event.target));
// An error is shown where the answer would be; a caller who is logged out goes to the login page.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status === 401) {
    const path = location.pathname.slice(document.body.dataset.base.length);
    goTo(`/ui/login?next=${encodeURIComponent(path + location.search)}`);
  } else if (event.detail.xhr.status >= 400) { event.detail.shouldSwap = true; event.detail.isError = false; }
});
