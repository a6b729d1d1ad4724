"use strict";
// Shows what is behind a click when it is opened, filters the rows of people, and follows a number to the items behind
// it. What is behind a click is held as text until then: in elements for browsers without scripts, or compressed.
(() => {
  const form = document.getElementById("filters");
  const count = document.getElementById("count");
  const tasks = [...document.querySelectorAll("details.task")];
  const groups = [...document.querySelectorAll("details.group")];
  const fields = ["model", "task", "occupation", "question", "group", "changed"];
  const value = (name) => form.elements[name].value;
  const filtered = () => fields.some((name) => value(name));

  async function inflated(packed) {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).text();
  }

  // The content of a box, once: a second call waits for nothing.
  async function load(box) {
    const packed = box.querySelector(":scope > script.packed");
    const held = box.querySelector(":scope > noscript");
    if (packed) {
      packed.remove();
      held.remove();
      box.insertAdjacentHTML("beforeend", await inflated(packed.textContent));
    } else if (held) {
      held.outerHTML = held.textContent;
    }
  }

  function fits(item) {
    const group = value("group"), changed = value("changed");
    return (!group || item.dataset.g.split(" ").includes(group)) && (!changed || item.dataset.c === changed);
  }

  function shown(task) {
    let own = 0;
    for (const row of task.querySelectorAll(".row")) {
      const right = (!value("occupation") || row.dataset.o === value("occupation")) && (!value("question") || row.dataset.q === value("question"));
      let inside = 0;
      for (const item of row.querySelectorAll(".item")) {
        const ok = right && fits(item);
        item.hidden = !ok;
        inside += ok;
      }
      for (const line of row.querySelectorAll("tr.sub")) line.hidden = !fits(line);
      row.hidden = !inside;
      own += inside;
    }
    for (const heading of task.querySelectorAll("h4")) heading.hidden = !heading.nextElementSibling.querySelector(".row:not([hidden])");
    return own;
  }

  // Filters apply to the tasks that are open; one that is chosen is opened.
  let turn = 0;
  async function apply() {
    const mine = ++turn;
    for (const task of tasks) {
      task.hidden = Boolean((value("model") && task.dataset.model !== value("model")) || (value("task") && task.dataset.key !== value("task")));
      if (value("task") && !task.hidden) task.open = true;
    }
    for (const group of groups) group.hidden = !group.querySelector("details.task:not([hidden])");
    const left = tasks.filter((task) => !task.hidden);
    if (filtered() && left.length && !left.some((task) => task.open)) left[0].open = true;
    if (filtered()) for (const task of left) if (task.open && task.closest("details.group")) task.closest("details.group").open = true;
    let total = 0;
    for (const task of left.filter((task) => task.open)) {
      await load(task);
      const more = task.querySelector(":scope > details.more");
      if (more && filtered()) {
        await load(more);
        more.open = true;
      }
      if (mine !== turn) return;
      total += shown(task);
    }
    count.textContent = filtered() ? `${total} answers, in the tasks that are open below` : `${tasks.length} tasks`;
  }

  function only(method) {
    for (const row of document.querySelectorAll("#strength-table tbody tr")) {
      row.hidden = Boolean(method) && row.dataset.method !== method;
      row.classList.toggle("on", row.dataset.method === method);
    }
    document.getElementById("all-methods").hidden = !method;
  }

  function follow(text) {
    const chosen = new URLSearchParams(text);
    if (chosen.has("method")) return only(chosen.get("method"));
    for (const name of fields) form.elements[name].value = chosen.get(name) || "";
    return apply();
  }

  document.addEventListener("toggle", (event) => {
    if (!event.target.open) return;
    if (event.target.classList.contains("task") && filtered()) apply();
    else load(event.target);
  }, true);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    const href = link.getAttribute("href") || "";
    if (link.dataset.filter) follow(link.dataset.filter);
    const target = href.length > 1 && document.getElementById(href.slice(1));
    if (!target) return;
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.focus({ preventScroll: true });
  });
  const button = document.querySelector("#all-methods button");
  if (button) button.addEventListener("click", () => only(""));
  form.addEventListener("change", apply);
  form.addEventListener("reset", () => setTimeout(async () => {
    await apply();
    groups.forEach((group, n) => { group.open = n === 0; });
    tasks.forEach((task, n) => { task.open = n === 0; for (const more of task.querySelectorAll("details.more")) more.open = false; });
  }));
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const box of opened) box.open = true;
  });
  addEventListener("afterprint", () => { for (const box of opened) box.open = false; });
  form.hidden = false;
  apply();
})();
