"use strict";
(() => {
  const root = document.documentElement;
  const themes = { "": "system", light: "light", dark: "dark" };
  const remembered = () => { try { return localStorage.getItem("theme") || ""; } catch { return ""; } };
  const paint = (theme) => { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; };
  paint(remembered());

  const rows = () => [...document.querySelectorAll("a.row, .messages .cc-message")];
  let at = -1;
  function move(by) {
    const all = rows();
    if (!all.length) return;
    all[at]?.closest("tr, .cc-message")?.classList.remove("at");
    at = Math.min(Math.max(at + by, 0), all.length - 1);
    const here = all[at].closest("tr, .cc-message");
    here.classList.add("at");
    here.scrollIntoView({ block: "nearest" });
    if (all[at].matches("a")) all[at].focus({ preventScroll: true });
  }
  function openMatches(words) {
    for (const part of document.querySelectorAll(".messages :is(details.cc-part, details.cc-piece)")) {
      if (words && part.textContent.toLowerCase().includes(words)) part.open = true;
    }
  }
  function unfold() {
    const parts = [...(rows()[at]?.querySelectorAll?.("details.cc-part, details.cc-piece") || [])];
    const open = parts.some((part) => !part.open);
    for (const part of parts) part.open = open;
    return parts.length > 0;
  }
  const open = (selector) => { const found = document.querySelector(selector); if (found) found.click(); };
  function search() {
    const field = document.querySelector("[data-search]");
    if (field) return field.focus();
    const session = document.querySelector(".crumbs a[href^='/sessions/']");
    location.href = document.querySelector(".tabs a[href$='/fact']")?.href || (session ? `${session.href}/fact` : "/sessions#q");
  }
  const keys = {
    "/": search,
    "?": () => document.getElementById("keys")?.showModal(),
    j: () => move(1), k: () => move(-1), o: unfold,
    "[": () => open("a[rel=prev]"), "]": () => open("a[rel=next]"),
  };

  async function toggle(link) {
    const message = link.closest(".cc-message");
    const shown = message.querySelector(":scope > .code");
    if (shown) shown.remove();
    else {
      const raw = document.createElement("pre");
      raw.className = "code";
      raw.tabIndex = 0;
      raw.textContent = "…";
      message.append(raw);
      try {
        const answer = await fetch(`/api${link.pathname}`);
        const given = await answer.json();
        raw.textContent = answer.ok ? given.json : given.error;
      } catch (error) {
        raw.textContent = error.message;
      }
    }
    message.classList.toggle("both", !shown);
    link.setAttribute("aria-expanded", String(!shown));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.matches("[data-search]")) event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    const tab = /^[1-9]$/.test(event.key) ? document.querySelectorAll(".tabs a")[event.key - 1] : null;
    const act = keys[event.key] || (tab && (() => tab.click()));
    if (act) { event.preventDefault(); act(); }
  });
  async function copy(button) {
    const address = `/api/chat/copy?session=${encodeURIComponent(button.dataset.copy)}`;
    const answer = await fetch(address, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
    const found = await answer.json();
    if (answer.ok) location.href = `/chat?session=${encodeURIComponent(found.session)}`;
    else document.getElementById("why").textContent = found.error;
  }
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector("[data-search]:target")?.focus();
    openMatches(document.querySelector("[data-within]")?.value.trim().toLowerCase());
    for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button));
    for (const link of document.querySelectorAll(".messages a.raw")) link.setAttribute("aria-expanded", "false");
    document.addEventListener("click", (event) => {
      const link = event.target.closest(".messages a.raw");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      toggle(link);
    });
    document.addEventListener("input", (event) => {
      const pair = event.target.closest(".sliders") && [event.target.dataset.for || event.target.id].map((name) => [document.getElementById(name), document.querySelector(`[data-for=${name}]`)])[0];
      for (const field of pair || []) field.value = event.target.value;
    });
    document.addEventListener("click", async (event) => {
      const clip = event.target.closest("[data-clip]");
      if (!clip) return;
      await navigator.clipboard.writeText(clip.dataset.clip);
      clip.textContent = "Copied";
    });
    for (const tab of document.querySelectorAll(".tabs [aria-current], .top nav [aria-current]")) {
      tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft - (tab.parentElement.clientWidth - tab.offsetWidth) / 2;
    }
    const button = document.getElementById("theme");
    const label = () => button.setAttribute("aria-label", `Color theme: ${themes[remembered()]}`);
    label();
    button.addEventListener("click", () => {
      const all = Object.keys(themes);
      const next = all[(all.indexOf(remembered()) + 1) % all.length];
      try { localStorage.setItem("theme", next); } catch { /* private window */ }
      paint(next);
      label();
    });
  });
})();
