"use strict";
// Filters the rows of people, and follows a number to the items behind it. Everything else works without this script.
(() => {
  const form = document.getElementById("filters");
  const count = document.getElementById("count");
  const tasks = [...document.querySelectorAll("section.task")];
  const fields = ["model", "task", "occupation", "question", "group", "changed"];
  const value = (name) => form.elements[name].value;

  function fits(item) {
    const group = value("group"), changed = value("changed");
    return (!group || item.dataset.g.split(" ").includes(group)) && (!changed || item.dataset.c === changed);
  }

  function apply() {
    const filtered = fields.some((name) => value(name));
    let shown = 0, all = 0;
    for (const task of tasks) {
      const open = (!value("model") || task.dataset.model === value("model")) && (!value("task") || task.dataset.key === value("task"));
      let own = 0;
      for (const row of task.querySelectorAll(".row")) {
        const right = open && (!value("occupation") || row.dataset.o === value("occupation")) && (!value("question") || row.dataset.q === value("question"));
        let inside = 0;
        for (const item of row.querySelectorAll(".item")) {
          const ok = right && fits(item);
          if (item.tagName !== "TD") item.hidden = !ok;
          inside += ok;
          all += 1;
        }
        for (const line of row.querySelectorAll("tr.sub")) line.hidden = !fits(line);
        row.hidden = !inside;
        own += inside;
      }
      task.hidden = !own;
      shown += own;
      for (const more of task.querySelectorAll("details.more")) more.open = filtered && own > 0;
    }
    count.textContent = shown === all ? `${all} answers` : `${shown} of ${all} answers shown`;
  }

  function only(method) {
    for (const row of document.querySelectorAll("#methods tbody tr")) {
      row.hidden = Boolean(method) && row.dataset.method !== method;
      row.classList.toggle("on", row.dataset.method === method);
    }
    document.getElementById("all-methods").hidden = !method;
  }

  function follow(text) {
    const wanted = new URLSearchParams(text);
    if (wanted.has("method")) return only(wanted.get("method"));
    for (const name of fields) form.elements[name].value = wanted.get(name) || "";
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
    if (target.tagName === "DETAILS") target.open = true;
    target.focus({ preventScroll: true });
  });
  const button = document.querySelector("#all-methods button");
  if (button) button.addEventListener("click", () => only(""));
  form.addEventListener("change", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.hidden = false;
  apply();
})();
