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

  const drawn = charts.map((name) => {
    const { data, layout } = report.charts[name];
    return Plotly.newPlot(document.getElementById(name), data, { ...layout, dragmode }, config);
  });
  Promise.all(drawn).then(() => {
    for (const legend of document.querySelectorAll(".legend")) legend.addEventListener("click", toggle);
    // When printing begins the page still has the screen's width, so the sizes are those of page.css for print.
    window.addEventListener("beforeprint", () =>
      resize((panel) => panel ? { width: 320, height: 310 } : { width: 660, height: 350 }));
    window.addEventListener("afterprint", () => resize(() => ({ width: null, height: null, autosize: true })));
    afterwards();
    document.documentElement.dataset.ready = "true";
  });
}
