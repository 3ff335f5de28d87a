"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const chat = at("chat");
  const [turns, form, field, stop, send] = ["turns", "compose", "text", "stop", "send"].map(at);
  const session = `session=${encodeURIComponent(chat.dataset.session)}`;
  const number = new Intl.NumberFormat("en");
  let coming = null;

  const isAtEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight });

  function notice(text, bad) {
    const line = document.createElement("p");
    line.className = bad ? "notice bad" : "notice";
    line.textContent = text;
    at("notices").replaceChildren(line);
  }
  function busy(now) {
    stop.disabled = !now;
    send.disabled = now;
    form.setAttribute("aria-busy", String(now));
  }
  function add(kind, text) {
    const block = document.createElement("div");
    block.className = `said ${kind}`;
    block.dir = "auto";
    block.textContent = text;
    coming.append(block);
    return block;
  }
  function render(html) {
    const answer = coming?.querySelector(".answer");
    if (!answer || !html) return;
    const end = isAtEnd();
    answer.classList.add("rendered");
    answer.innerHTML = html;  // written by the server, without any HTML of the model
    if (end) toEnd();
  }
  const lastBlock = (node) => {
    const child = node.lastElementChild;
    return child?.matches("p, ul, ol, li, blockquote, pre, pre > code, h1, h2, h3, h4, h5, h6") ? lastBlock(child) : node;
  };
  function append(text) {
    const answer = coming?.querySelector(".answer");
    if (!answer) return;
    let rest = answer.classList.contains("rendered") ? answer.querySelector(".rest") : answer;
    if (!rest) {
      rest = document.createElement("span");
      rest.className = "rest";
      lastBlock(answer).append(rest);
    }
    rest.append(text);
  }
  function begin(prompt, text) {
    if (coming) return;
    const end = isAtEnd();
    coming = document.createElement("article");
    coming.className = "turn";
    add("user", prompt);
    add("answer coming", text);
    turns.append(coming);
    at("empty").hidden = true;
    busy(true);
    if (end) toEnd();
  }
  async function load(before) {
    const answer = await fetch(`/chat/turns?${session}${before ? `&before=${before}` : ""}`);
    if (!answer.ok) throw new Error(`the chat cannot be read (${answer.status})`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return [...page.body.children];
  }
  async function reload() {
    const end = isAtEnd();
    turns.replaceChildren(...(await load()), ...(coming ? [coming] : []));
    at("empty").hidden = Boolean(turns.querySelector(".turn"));
    if (end) toEnd();
  }
  function figures(data) {
    at("fill").hidden = !data.sent;
    if (!data.sent) return;
    const share = data.budget ? Math.min(100, (100 * data.sent) / data.budget) : 0;
    at("ring").setAttribute("stroke-dasharray", `${share.toFixed(1)} 100`);
    const of = data.budget ? ` of ${number.format(data.budget)}` : "";
    const raw = data.raw > data.sent ? `, raw ${number.format(data.raw)}` : "";
    at("figures").textContent = `sent ${number.format(data.sent)}${of}${raw}`;
  }
  const handlers = {
    async state(data) {
      coming = null;
      await reload();
      busy(Boolean(data.pending));
      if (data.pending) {
        begin(data.pending.prompt, data.pending.text);
        render(data.pending.html);
      }
      figures(data);
    },
    prompt: (data) => begin(data.text, ""),
    piece(data) {
      const end = isAtEnd();
      append(data.text);
      if (end) toEnd();
    },
    rendered: (data) => render(data.html),
    async done(data) {
      coming = null;
      await reload();
      busy(false);
      figures(data);
      if (data.unsent && !field.value) field.value = data.unsent;
      if (data.error) notice(data.unsent ? data.error : `${data.error} — the turn so far is stored`, true);
      else if (data.stopped) notice("stopped: what was shown is kept");
    },
    turns: () => reload(),
    notice: (data) => notice(data.text),
  };

  let last = Promise.resolve();
  function listen() {
    const source = new EventSource(`/api/chat/events?${session}`);
    for (const [name, act] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        last = last.then(() => act(JSON.parse(event.data))).catch((error) => notice(error.message, true));
      });
    }
    source.addEventListener("error", () => notice("the connection to the server was lost; trying again", true));
    source.addEventListener("open", () => { if (at("notices").textContent.startsWith("the connection")) at("notices").replaceChildren(); });
  }

  async function post(path, body) {
    const answer = await fetch(`${path}?${session}`, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
    const reply = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(reply.error || `refused (${answer.status})`);
    return reply;
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = field.value;
    if (!text.trim()) return;
    if (send.disabled) {
      notice("An answer is still being written: Stop ends it. Your message stays in the field.");
      return;
    }
    const body = { text, endless: at("endless").checked, template: at("template").value, model: at("model").value || at("other").value.trim() };
    send.disabled = true;
    field.value = "";  // before the answer: "done" may come first, and bring the text back
    at("notices").replaceChildren();
    try {
      await post("/api/chat", body);
    } catch (error) {
      if (!field.value) field.value = text;
      notice(error.message, true);
      send.disabled = Boolean(coming);
    }
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    } else if (event.key === "Escape" && coming) {
      stop.click();
    }
  });
  at("model").addEventListener("change", () => {
    at("other").hidden = at("model").value !== "";
    if (!at("other").hidden) at("other").focus();
  });
  stop.addEventListener("click", () => post("/api/chat/stop", {}).catch((error) => notice(error.message, true)));
  turns.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-before]");
    if (!button) return;
    const height = document.documentElement.scrollHeight;
    try {
      button.replaceWith(...(await load(button.dataset.before)));
      scrollBy({ top: document.documentElement.scrollHeight - height });
    } catch (error) {
      notice(error.message, true);
    }
  });
  fetch("/api/context/templates").then((answer) => (answer.ok ? answer.json() : null)).then((reply) => {
    if (!reply) return;
    const menu = at("template");
    const now = menu.value;
    const names = [...new Set((reply.templates || reply).filter((template) => !template.shadowed_by).map((template) => template.name))];
    menu.replaceChildren(...(names.includes(now) ? names : [now, ...names]).map((name) => new Option(name, name, name === now, name === now)));
  }).catch(() => {});
  listen();
  toEnd();
})();
