// Shows the value under the pointer. The page says the same without it.
for (const svg of document.querySelectorAll('svg.chart')) {
  const {top, bottom, points} = JSON.parse(svg.dataset.hover), cursor = svg.querySelector('.cursor');
  svg.addEventListener('pointermove', event => {
    const box = svg.viewBox.baseVal, place = svg.getBoundingClientRect();
    const x = (event.clientX - place.left) / place.width * box.width;
    const [px, py, text] = points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
    const [textX, anchor] = px > box.width / 2 ? [px - 10, 'end'] : [px + 10, 'start'];
    cursor.innerHTML = `<line x1="${px}" x2="${px}" y1="${top}" y2="${bottom}"/>` +
      `<circle cx="${px}" cy="${py}" r="4.5"/>` +
      `<text x="${textX}" y="${Math.max(top + 26, py - 12)}" text-anchor="${anchor}"></text>`;
    cursor.lastChild.textContent = text;
  });
  svg.addEventListener('pointerleave', () => cursor.replaceChildren());
}
