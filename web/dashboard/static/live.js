// Keeps the parts of a page live that the server makes anew: [data-region] elements take
// the HTML of the events of their name, and a page with data-again is read again now and then.
// Elements are changed in place, so that focus, selection and scrolling stay where they are.
'use strict';

(() => {
  const source = document.body.dataset.live;
  const again = document.body.dataset.again !== undefined;
  const bar = document.querySelector('[data-live-state]');
  const text = document.querySelector('[data-live-text]');
  const toggle = document.querySelector('[data-live-toggle]');

  // Times are UTC, or those of the viewer's zone, which the browser remembers.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const clock = new Intl.DateTimeFormat('sv-SE', { dateStyle: 'short', timeStyle: 'medium' }); // 2026-01-02 15:04:05
  const isClock = /^\s*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$/;
  const store = { get: () => { try { return localStorage.getItem('lowkiq-times'); } catch { return null; } }, set: (value) => { try { localStorage.setItem('lowkiq-times', value); } catch { /* it is not remembered */ } } };
  let local = store.get() === 'local' && zone !== 'UTC';

  function showTimes(part) {
    part.querySelectorAll('time[datetime]').forEach((one) => {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) return;
      const words = local ? clock.format(at) : at.toISOString().slice(0, 19).replace('T', ' ');
      if (one.title) one.title = words;
      if (isClock.test(one.textContent)) one.textContent = words;
    });
  }

  const zoneToggle = document.querySelector('[data-zone-toggle]');
  function showZone() {
    document.querySelector('[data-zone]').textContent = `times are ${local ? zone : 'UTC'}`;
    zoneToggle.textContent = local ? 'Show UTC' : `Show ${zone}`;
    showTimes(document);
  }
  if (zoneToggle && zone !== 'UTC') {
    zoneToggle.hidden = false;
    zoneToggle.addEventListener('click', () => { local = !local; store.set(local ? 'local' : 'utc'); showZone(); });
    showZone();
  }

  document.querySelectorAll('[data-check-all]').forEach((box) => {
    box.closest('label').hidden = false;
    box.addEventListener('change', () => {
      box.closest('form').querySelectorAll('input[name=key]').forEach((one) => { one.checked = box.checked; });
    });
  });

  // Shift and a click tick what lies between two boxes.
  let ticked = null;
  document.addEventListener('click', (event) => {
    const box = event.target;
    if (!box.matches || !box.matches('input[type=checkbox][name=key]')) return;
    const all = [...document.querySelectorAll('input[type=checkbox][name=key]')];
    if (event.shiftKey && all.includes(ticked)) {
      const [from, to] = [all.indexOf(ticked), all.indexOf(box)].sort((a, b) => a - b);
      all.slice(from, to + 1).forEach((one) => { one.checked = box.checked; });
    }
    ticked = box;
  });

  // A search that has found nothing so far goes on by itself, page after page, while somebody looks at it.
  const goOn = document.querySelector('[data-go-on]');
  if (goOn) {
    let stopped = false;
    const stop = document.createElement('button');
    stop.type = 'button';
    stop.textContent = 'Stop';
    stop.addEventListener('click', () => { stopped = true; window.stop(); stop.remove(); });
    goOn.textContent = 'Going on…';
    goOn.after(' ', stop);
    const next = () => { if (!stopped && !document.hidden) location.replace(goOn.href); };
    document.addEventListener('visibilitychange', next);
    next();
  }

  // A menu closes with Escape, and when the focus or a click goes elsewhere. Without scripts its own button closes it, and so does another menu.
  const closeMenus = (beside) => document.querySelectorAll('details.menu[open]').forEach((menu) => { if (!menu.contains(beside)) menu.open = false; });
  document.addEventListener('click', (event) => closeMenus(event.target));
  document.addEventListener('focusin', (event) => closeMenus(event.target));
  document.addEventListener('keydown', (event) => {
    const menu = document.querySelector('details.menu[open]');
    if (event.key !== 'Escape' || !menu) return;
    if (menu.contains(document.activeElement)) menu.querySelector('summary').focus();
    menu.open = false;
  });

  if (!(source || again) || !bar) return;

  const say = (words) => { if (text.textContent !== words) text.textContent = words; };

  function sync(from, to) {
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && name !== 'open') from.removeAttribute(name); // people open menus
    }
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    syncChildren(from, to);
  }

  function syncChildren(from, to) {
    const next = [...to.childNodes];
    next.forEach((node, i) => {
      const old = from.childNodes[i];
      if (!old) {
        from.append(node);
      } else if (old.nodeType !== node.nodeType || old.nodeName !== node.nodeName) {
        old.replaceWith(node);
      } else if (node.nodeType === Node.ELEMENT_NODE) {
        sync(old, node);
      } else if (old.nodeValue !== node.nodeValue) {
        old.nodeValue = node.nodeValue;
      }
    });
    while (from.childNodes.length > next.length) from.lastChild.remove();
  }

  function show(region, html) {
    const made = document.createElement('template');
    made.innerHTML = html;
    if (local) showTimes(made.content);
    syncChildren(region, made.content);
  }

  // A screen reader hears the figures now and then, not all the time.
  const speaker = document.querySelector('[data-say]');
  const sayEvery = 30000;
  let spoken = Date.now();

  function speak() {
    const figures = document.querySelectorAll('[data-figures] > div');
    if (!speaker || figures.length === 0 || Date.now() - spoken < sayEvery) return;
    spoken = Date.now();
    speaker.textContent = [...figures].map((one) => [...one.children].map((part) => part.textContent).join(' ')).join(', ');
  }

  let stream = null;

  // reader reads the page again every five seconds, or more seldom if that takes long. While somebody types or has text selected, nothing moves.
  const every = 5000;
  function reader() {
    const own = { close: () => clearTimeout(own.timer) };
    const busy = () => document.activeElement.matches('main :is(input, select, textarea)') || !document.getSelection().isCollapsed;
    const read = async () => {
      const began = Date.now();
      try {
        const answer = await fetch(location.href);
        const page = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main');
        if (stream !== own) return;
        if (answer.redirected || !page) { close('not live: reload the page'); return; }
        if (local) showTimes(page);
        if (!busy()) syncChildren(document.querySelector('main'), page);
        say('live');
      } catch {
        if (stream !== own) return;
        say('the connection is lost, trying again');
      }
      wait(Math.max(every, 20 * (Date.now() - began)));
    };
    const wait = (time) => { own.timer = setTimeout(read, time); };
    wait(every);
    say('live');
    return own;
  }

  function open() {
    toggle.textContent = 'Hold still';
    if (again) { stream = reader(); return; }
    const own = new EventSource(source);
    stream = own;
    own.onopen = () => say('live');
    own.onerror = () => {
      if (own.readyState === EventSource.CLOSED) close('not live: reload the page');
      else say('the connection is lost, trying again');
    };
    document.querySelectorAll('[data-region]').forEach((region) => {
      own.addEventListener(region.dataset.region, (event) => {
        show(region, event.data);
        speak();
      });
    });
    own.addEventListener('trouble', (event) => {
      const banner = document.getElementById('trouble');
      banner.querySelector('[data-trouble]').textContent = event.data;
      banner.hidden = event.data === '';
    });
  }

  function close(words) {
    if (stream) stream.close();
    stream = null;
    say(words);
    toggle.textContent = 'Go live';
  }

  let held = false;
  toggle.addEventListener('click', () => {
    held = stream !== null;
    if (held) close('held still'); else open();
  });
  // A page that nobody sees needs no figures.
  document.addEventListener('visibilitychange', () => {
    if (held) return;
    if (document.hidden) close('paused in the background'); else if (!stream) open();
  });

  bar.hidden = false;
  open();
})();
