"use strict";
// Opens what is behind a click, filters the rows of people, and follows a number to the items behind it. Without this
// script the same content is shown: it is in <noscript> elements, which a browser that runs scripts holds as text.
(() => {
  const form = document.getElementById("filters");
  const count = document.getElementById("count");
  const tasks = [...document.querySelectorAll("details.task")];
  const fields = ["model", "task", "occupation", "question", "group", "changed"];
  const value = (name) => form.elements[name].value;

  function load(box, deep) {
    for (const held of box.querySelectorAll(deep ? "noscript" : ":scope > noscript")) held.outerHTML = held.textContent;
  }

  document.addEventListener("toggle", (event) => { if (event.target.open) load(event.target); }, true);

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
    for (const heading of task.querySelectorAll("h4")) {
      let row = heading.nextElementSibling;
      while (row && row.classList.contains("row") && row.hidden) row = row.nextElementSibling;
      heading.hidden = !(row && row.classList.contains("row"));
    }
    return own;
  }

  function apply() {
    const filtered = fields.some((name) => value(name));
    let total = 0, first = true;
    for (const task of tasks) {
      const chosen = (!value("model") || task.dataset.model === value("model")) && (!value("task") || task.dataset.key === value("task"));
      if (filtered && chosen) load(task, true);
      const own = chosen ? shown(task) : 0;
      task.hidden = filtered && !own;
      total += own;
      if (filtered) {
        task.open = own > 0 && (first || Boolean(value("task")));
        for (const more of task.querySelectorAll("details.more")) more.open = task.open;
      }
      first = first && !own;
    }
    count.textContent = filtered ? `${total} answers in ${tasks.filter((task) => !task.hidden).length} of ${tasks.length} tasks` : `${tasks.length} tasks`;
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
    apply();
  }

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
  form.addEventListener("reset", () => setTimeout(() => {
    apply();
    tasks.forEach((task, n) => { task.open = n === 0; for (const more of task.querySelectorAll("details.more")) more.open = false; });
  }));
  form.hidden = false;
  apply();
})();
