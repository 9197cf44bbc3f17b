"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const charts = Object.keys(report.charts);

// Draws all charts, makes legends and printing work, and then calls `afterwards`.
function drawCharts(afterwards = () => {}) {
  // A finger on a figure scrolls the page, a mouse zooms the figure.
  const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
  const config = { responsive: true, displayModeBar: false, displaylogo: false, typesetMath: false };

  function toggle(event) {
    const button = event.target.closest("button");
    if (!button) return;
    const seen = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(seen));
    const chart = document.getElementById(event.currentTarget.dataset.chart);
    Plotly.restyle(chart, { visible: seen }, button.dataset.trace.split(" ").map(Number));
  }

  function resize(size) {
    for (const name of charts) {
      const chart = document.getElementById(name);
      Plotly.relayout(chart, size(chart.classList.contains("panel")));
    }
  }

  // A heatmap's figures come once, as rows of a triangle; colours, veil and border are made of them.
  function spread({ data, layout, costs }) {
    if (!costs.length) return;
    const text = costs.map((row) => row.split(" "));
    const last = text.length - 1;
    const scaled = (cost) => Number.isFinite(cost) ? (layout.meta.log ? Math.log10(cost) : cost) : null;
    const grid = (cell) => text.map((row, i) => text.map((_, j) => i + j <= last ? cell(row[j], i, j) : null));
    data[0].z = grid((cost) => scaled(Number(cost)));
    data[0].text = text;
    data[0].customdata = grid((_, i, j) => (last - i - j) / Math.max(last, 1));
    for (const trace of data.slice(1)) if ("z" in trace) trace.z = data[0].z;
  }

  // One after the other, so that the first is seen before the last is drawn.
  async function drawAll() {
    for (const name of charts) {
      const chart = report.charts[name];
      spread(chart);
      await Plotly.newPlot(document.getElementById(name), chart.data, { ...chart.layout, dragmode }, config);
      if (name === charts[0]) performance.mark("first figure");
      await new Promise((seen) => setTimeout(seen));
    }
  }

  drawAll().then(() => {
    for (const legend of document.querySelectorAll(".legend")) legend.addEventListener("click", toggle);
    // When printing begins the page still has the screen's width, so the sizes are those of page.css for print.
    window.addEventListener("beforeprint", () =>
      resize((panel) => panel ? { width: 320, height: 310 } : { width: 660, height: 350 }));
    window.addEventListener("afterprint", () => resize(() => ({ width: null, height: null, autosize: true })));
    afterwards();
    document.documentElement.dataset.ready = "true";
  });
}
