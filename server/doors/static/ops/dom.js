// Small helpers around the document. What has not changed is not written: a page that hangs on a wall for weeks stays cheap.

export const find = (id) => document.getElementById(id);

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function attribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function share(element, value) {
  const text = `${(100 * Math.min(1, Math.max(0, value))).toFixed(1)}%`;
  if (element.style.getPropertyValue("--share") !== text) element.style.setProperty("--share", text);
}

/** An element with its classes and children: `make("li.row", "text", other)`. */
export function make(name, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  element.append(...children);
  return element;
}

/** Fill a `<dl>` with `[term, text, key]`; rows are kept while their terms stay the same. */
export function pairs(list, entries) {
  const terms = JSON.stringify(entries.map(([term]) => term));
  if (list.dataset.terms !== terms) {
    list.dataset.terms = terms;
    list.replaceChildren(
      ...entries.map(([term, , key]) => {
        const row = make("div", make("dt", term), make("dd"));
        if (key) row.dataset.series = key;
        return row;
      }),
    );
  }
  entries.forEach(([, text], i) => write(list.children[i].lastChild, text));
}
