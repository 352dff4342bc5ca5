// axe looks at the document as assistive technology and tired eyes do, and returns what
// it objects to: [{rule, where, what}]. The rules are those of WCAG 2.2 that a program
// can judge; contrast is computed by its formula of relative luminance.
(() => {
  const found = [];
  const report = (rule, element, what) => found.push({rule, where: describe(element), what});

  const describe = (e) => {
    if (!e || !e.tagName) return "document";
    let name = e.tagName.toLowerCase();
    if (e.id) name += "#" + e.id;
    else if (e.classList.length) name += "." + [...e.classList].join(".");
    if (e.matches("input,select,textarea,button")) return e.outerHTML.replace(/\s+/g, " ").slice(0, 120);
    const text = (e.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
    return text ? `${name} "${text}"` : name;
  };
  const all = (selector) => [...document.querySelectorAll(selector)];

  // seen: it takes part in the rendering, and is not put away for screen readers only.
  const seen = (e) => {
    if (!e.checkVisibility({checkOpacity: false, checkVisibilityCSS: true})) return false;
    const box = e.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && getComputedStyle(e).clipPath === "none";
  };
  const putAway = (e) => {
    for (let p = e; p; p = p.parentElement) {
      const style = getComputedStyle(p);
      const box = p.getBoundingClientRect();
      if (style.position === "absolute" && (box.width <= 1 || box.height <= 1 || style.clipPath !== "none" || box.right < 0 || box.bottom < 0)) return true;
    }
    return false;
  };
  const exposed = (e) => !e.closest("[aria-hidden=true]") && e.checkVisibility({checkVisibilityCSS: true});

  // spoken is the text of an element as it is read out, alternatives of pictures included.
  const spoken = (e) => {
    let text = "";
    for (const n of e.childNodes) {
      if (n.nodeType === Node.TEXT_NODE) text += n.data;
      else if (n.nodeType === Node.ELEMENT_NODE && n.getAttribute("aria-hidden") !== "true")
        text += n.getAttribute("aria-label") || n.getAttribute("alt") || spoken(n);
    }
    return text;
  };
  const referred = (e, attribute) => (e.getAttribute(attribute) || "").split(/\s+/).filter(Boolean)
    .map((id) => document.getElementById(id)).filter(Boolean).map((x) => x.getAttribute("aria-label") || spoken(x)).join(" ");
  const nameOf = (e) => [
    referred(e, "aria-labelledby"), e.getAttribute("aria-label"),
    e.labels ? [...e.labels].map(spoken).join(" ") : "",
    e.matches("input[type=submit],input[type=button],input[type=reset]") ? e.value : "",
    e.matches("img") ? e.alt : "",
    e.matches("a,button,summary,[role=button],[role=link]") ? spoken(e) : "",
    e.matches("table") && e.caption ? spoken(e.caption) : "",
    e.title,
  ].find((x) => x && x.trim()) || "";

  // The document.
  if (!document.documentElement.lang) report("lang", document.documentElement, "the document has no language");
  if (!document.title.trim()) report("title", document.head, "the document has no title");
  const viewport = document.querySelector("meta[name=viewport]");
  if (!viewport || /user-scalable\s*=\s*(no|0)|maximum-scale\s*=\s*[0-4](?:\D|$)/.test(viewport.content))
    report("viewport", viewport, "a phone cannot show it at its width, or cannot zoom");
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) {
    // What is positioned absolutely leaves a scrolling ancestor that is not positioned itself.
    const leaves = (e) => {
      let absolute = getComputedStyle(e).position === "absolute";
      for (let p = e.parentElement; p; p = p.parentElement) {
        const style = getComputedStyle(p);
        if (!absolute && style.overflowX !== "visible") return false;
        if (absolute && style.position !== "static") {
          if (style.overflowX !== "visible") return false;
          absolute = style.position === "absolute";
        }
      }
      return true;
    };
    const culprit = all("body *").find((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && leaves(e));
    report("overflow", culprit, `the document is ${wide} px wider than the window`);
  }

  // Structure.
  const headings = all("h1,h2,h3,h4,h5,h6").filter(exposed);
  const level = (h) => Number(h.tagName[1]);
  const first = headings.filter((h) => level(h) === 1);
  if (first.length !== 1) report("one-h1", first[1], `${first.length} headings of the first level, want one`);
  headings.forEach((h, i) => {
    if (i > 0 && level(h) > level(headings[i - 1]) + 1) report("heading-order", h, `follows ${describe(headings[i - 1])}`);
    if (!spoken(h).trim()) report("heading-empty", h, "says nothing");
  });
  if (all("main").length !== 1) report("landmark", document.body, `${all("main").length} main landmarks, want one`);
  const stray = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (stray.nextNode()) {
    const e = stray.currentNode.parentElement;
    if (stray.currentNode.data.trim() && seen(e) && !e.closest("main,nav,header,footer,aside,[role=region],script,style,noscript,.skip,[href='#main']"))
      report("landmark", e, "text outside of all landmarks");
  }
  const ids = new Set();
  for (const e of all("[id]")) {
    if (ids.has(e.id)) report("unique-id", e, "its id is there twice");
    ids.add(e.id);
  }
  for (const attribute of ["for", "aria-labelledby", "aria-describedby", "aria-controls"])
    for (const e of all(`[${attribute}]`))
      for (const id of e.getAttribute(attribute).split(/\s+/).filter(Boolean))
        if (!document.getElementById(id)) report("reference", e, `${attribute} refers to "${id}", which is not there`);
  for (const e of all("[tabindex]")) if (e.tabIndex > 0) report("tabindex", e, "jumps the queue of the tab key");
  for (const e of all("ul,ol")) for (const c of e.children) if (!c.matches("li,script,template")) report("list", c, "is in a list and no item of it");
  for (const e of all("dl")) for (const c of e.children) if (!c.matches("dt,dd,div,script,template")) report("list", c, "is in a description list and no part of it");

  // Names.
  for (const e of all("a[href],button,input:not([type=hidden]),select,textarea,summary,[role=button],[role=link]"))
    if (exposed(e) && !nameOf(e)) report("name", e, "has no accessible name");
  for (const e of all("img")) if (!e.hasAttribute("alt")) report("alt", e, "has no alternative text");
  for (const e of all("svg")) {
    if (e.closest("[aria-hidden=true]") || e.parentElement.closest("svg,[role=img]")) continue;
    if (e.getAttribute("role") !== "img" || !(nameOf(e) || e.querySelector(":scope > title"))) report("alt", e, "is a picture without a role and a name");
  }
  for (const e of all("[role=region],[role=group],fieldset,nav")) {
    if (e.matches("fieldset") ? !e.querySelector(":scope > legend") && !nameOf(e) : !nameOf(e) && (e.matches("[role=region]") || all("nav").length > 1))
      report("name", e, "is a region without a name");
  }

  // Tables.
  for (const e of all("table")) {
    if (!nameOf(e)) report("table", e, "has neither caption nor name");
    const heads = [...e.querySelectorAll("th")];
    if (!heads.length) report("table", e, "has no headers");
    for (const th of heads) {
      if (!th.scope) report("table", th, "has no scope");
      if (!spoken(th).trim()) report("table", th, "is empty");
    }
    const span = (row) => [...row.cells].reduce((n, c) => n + c.colSpan, 0);
    const widths = new Set([...e.rows].filter((r) => ![...e.querySelectorAll("[rowspan]")].length).map(span));
    if (widths.size > 1) report("table", e, `has rows of ${[...widths].join(" and ")} columns`);
  }

  // Colours.
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  canvas.canvas.width = canvas.canvas.height = 1;
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const d = canvas.getImageData(0, 0, 1, 1).data;
      known.set(colour, [d[0], d[1], d[2], d[3] / 255]);
    }
    return known.get(colour);
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (x, y) => {
    const [high, low] = [luminance(x), luminance(y)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  // Below everything is the canvas, in the colour of the scheme.
  const canvasColour = rgba(getComputedStyle(document.documentElement).colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#ffffff");
  const behind = (e) => {
    const layers = [];
    for (let p = e; p; p = p.parentElement) {
      const colour = rgba(getComputedStyle(p).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), canvasColour);
  };
  const faded = (e) => { let o = 1; for (let p = e; p; p = p.parentElement) o *= Number(getComputedStyle(p).opacity); return o; };
  const judge = (e, colour, what) => {
    const style = getComputedStyle(e);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700;
    const back = behind(e);
    const front = rgba(colour);
    const ratio = contrast(over([front[0], front[1], front[2], front[3] * faded(e)], back), back);
    if (ratio < (large ? 3 : 4.5)) report("contrast", e, `${what} ${ratio.toFixed(2)} : 1, want ${large ? 3 : 4.5}`);
  };
  const judged = new Set();
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const e = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || judged.has(e) || e.closest("script,style,noscript,:disabled") || !seen(e) || putAway(e)) continue;
    judged.add(e);
    judge(e, e.closest("svg") ? getComputedStyle(e).fill : getComputedStyle(e).color, "text");
  }
  for (const e of all("input,textarea,select")) {
    if (!seen(e) || e.disabled || e.matches("[type=hidden],[type=checkbox],[type=radio]")) continue;
    judge(e, getComputedStyle(e).color, "text");
    if (e.placeholder) judge(e, getComputedStyle(e, "::placeholder").color, "placeholder");
  }

  // Targets: 24 px each way, or nothing else within a circle of 24 px; links in a sentence are exempt.
  const targets = all("a[href],button,input:not([type=hidden]),select,textarea,summary").filter((e) => seen(e) && !putAway(e) && !e.disabled);
  const boxes = targets.map((e) => {
    let box = e.getBoundingClientRect();
    for (const l of e.matches("[type=checkbox],[type=radio]") ? e.labels : []) {
      const b = l.getBoundingClientRect(); // the label is a part of the target
      box = new DOMRect(Math.min(box.x, b.x), Math.min(box.y, b.y), Math.max(box.right, b.right) - Math.min(box.x, b.x), Math.max(box.bottom, b.bottom) - Math.min(box.y, b.y));
    }
    return box;
  });
  const inSentence = (e) => {
    if (!e.matches("a") || getComputedStyle(e).display !== "inline") return false;
    const block = e.parentElement.closest("p,li,td,th,dd,dt,div,caption,h1,h2,h3,section,main,body");
    const rest = [...block.childNodes].filter((n) => n.nodeType === Node.TEXT_NODE).map((n) => n.data).join("").trim();
    return rest.length > 3;
  };
  targets.forEach((e, i) => {
    const box = boxes[i];
    if (box.width >= 23.5 && box.height >= 23.5 || inSentence(e)) return;
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    const near = boxes.findIndex((b, k) => {
      if (k === i || targets[k].contains(e) || e.contains(targets[k])) return false;
      const dx = Math.max(b.left - x, 0, x - b.right), dy = Math.max(b.top - y, 0, y - b.bottom);
      const limit = b.width < 23.5 || b.height < 23.5 ? 24 : 12;
      const distance = limit === 24 ? Math.hypot(b.x + b.width / 2 - x, b.y + b.height / 2 - y) : Math.hypot(dx, dy);
      return distance < limit - 0.5;
    });
    if (near >= 0) report("target", e, `is ${box.width.toFixed(0)} x ${box.height.toFixed(0)} px, and ${describe(targets[near])} is beside it`);
  });

  // What scrolls can be scrolled with the keyboard.
  for (const e of all("body *")) {
    const style = getComputedStyle(e);
    const scrolls = /auto|scroll/.test(style.overflowX) && e.scrollWidth > e.clientWidth + 1 || /auto|scroll/.test(style.overflowY) && e.scrollHeight > e.clientHeight + 1;
    if (scrolls && seen(e) && e.tabIndex < 0 && !e.matches("textarea") && !e.querySelector("a[href],button,input,select,textarea,[tabindex='0']"))
      report("scroll", e, "scrolls, and the keyboard cannot reach it");
  }
  return found;
})()
