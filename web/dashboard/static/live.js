// Keeps the parts of a page live that the server makes anew: [data-region] elements take
// the HTML of the events of their name. Elements are changed in place, so that focus,
// selection and scrolling stay where they are.
'use strict';

(() => {
  const source = document.body.dataset.live;
  const bar = document.querySelector('[data-live-state]');
  const text = document.querySelector('[data-live-text]');
  const toggle = document.querySelector('[data-live-toggle]');

  document.querySelectorAll('[data-check-all]').forEach((box) => {
    box.closest('label').hidden = false;
    box.addEventListener('change', () => {
      box.closest('form').querySelectorAll('input[name=key]').forEach((one) => { one.checked = box.checked; });
    });
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

  if (!source || !bar) return;

  const say = (words) => { if (text.textContent !== words) text.textContent = words; };

  function sync(from, to) {
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name)) from.removeAttribute(name);
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

  function open() {
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
    toggle.textContent = 'Hold still';
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
