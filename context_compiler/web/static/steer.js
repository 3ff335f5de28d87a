"use strict";
(() => {
  const root = document.querySelector("[data-steer]");
  const at = (id) => document.getElementById(id);
  const dialog = at("compact");
  const number = new Intl.NumberFormat("en");
  if (!root || !dialog) return;

  function say(place, text, bad) {
    const line = document.createElement("p");
    line.className = bad ? "notice bad" : "notice";
    line.textContent = text;
    place.replaceChildren(line);
  }
  async function post(way, body) {
    const answer = await fetch(`${root.dataset.steer}/${way}${root.dataset.query || ""}`, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
    const reply = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(reply.error || `refused (${answer.status})`);
    return reply;
  }
  function describe(given) {
    if (!given.done) return given.why;
    const preview = given.kind === "preview";
    const most = preview && given.usage.output_tokens ? "at most " : "";
    const parts = [`${number.format(given.before)} → ${most}${number.format(given.after)} tokens`];
    if (given.kind === "undo") return `${parts[0]}: ${given.summary ? "the previous summary" : "the whole history"} is sent again`;
    parts.push(`${given.turns} turn${given.turns === 1 ? "" : "s"} word for word`);
    const tokens = (given.usage.input_tokens || 0) + (given.usage.output_tokens || 0);
    parts.push(tokens ? `${given.model}: ${most}${number.format(tokens)} tokens, price ${given.cost}` : "no model called");
    return parts.join(", ") + (preview ? "; nothing was changed" : "") + (given.why ? `; ${given.why}` : "");
  }
  function changed(text) {
    if (root.dataset.reload) location.reload();
    else say(at("notices"), text);
  }
  function swap(button, pin, unpin) {
    delete button.dataset[pin ? "pin" : "unpin"];
    button.dataset[pin ? "unpin" : "pin"] = pin || unpin;
    button.textContent = pin ? "Unpin" : "Keep always";
    button.title = pin ? "" : "Every request from the next run on has this message, word for word";
  }
  async function act(place, work) {
    try {
      await work();
    } catch (error) {
      say(place, error.message, true);
    }
  }
  const order = () => ({ focus: at("focus").value.trim(), start: at("start").value.trim(), ...(at("writer") ? { model: at("writer").value.trim() || "none" } : {}) });
  function open(start) {
    at("start").value = start || "";
    at("outcome").replaceChildren();
    dialog.showModal();
  }
  async function compact(preview) {
    for (const button of [at("go"), at("preview")]) button.disabled = true;
    say(at("outcome"), preview ? "previewing …" : "compiling …");
    await act(at("outcome"), async () => {
      const given = await post("compact", { ...order(), preview });
      say(at("outcome"), describe(given), !given.done);
      if (given.done && !preview) {
        at("outcome").replaceChildren();
        dialog.close();
        changed(describe(given));
      }
    });
    for (const button of [at("go"), at("preview")]) button.disabled = false;
  }
  at("preview").addEventListener("click", () => compact(true));
  at("go").addEventListener("click", () => compact(false));
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const { pin, unpin, from, dismiss } = button.dataset;
    if (button.dataset.open) open("");
    else if (from) open(from);
    else if ("undo" in button.dataset) {
      act(at("notices"), async () => {
        const given = await post("undo", {});
        if (given.done) changed(describe(given));
        else say(at("notices"), describe(given), true);
      });
    } else if (dismiss) {
      act(at("notices"), async () => {
        await post("dismiss", { rule: dismiss });
        changed("no longer a rule");
      });
    } else if (pin || unpin) {
      act(at("notices"), async () => {
        const given = await post(pin ? "pin" : "unpin", { message: pin || unpin });
        changed(`from the next run on, turn ${given.turn} ${pin ? "stays in every view" : "is no longer pinned"}`);
        if (button.closest(".cc-acts")) swap(button, pin, unpin);
      });
    }
  });
})();
