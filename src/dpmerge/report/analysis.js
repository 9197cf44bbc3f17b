{
  const input = document.getElementById("target");
  const message = document.getElementById("message");
  const plan = document.getElementById("plan");
  let drawn = false;

  function element(tag, text, ...children) {
    const made = document.createElement(tag);
    if (text !== null) made.textContent = text;
    made.append(...children);
    return made;
  }

  function chosenPlan(target) {
    // By target first; below the smallest target a plan may still cost less than was asked of it.
    const within = report.plans.filter((each) => each.target <= target);
    if (within.length) return within[within.length - 1];
    return report.plans.find((each) => each.epsilon !== null && each.epsilon <= target);
  }

  function describe(chosen, target) {
    if (!report.plans.length) {
      plan.replaceChildren(element("p", "This analysis found no plan for any target."));
      return;
    }
    if (!chosen) {
      const reach = report.smallest === null ? "" : ` The smallest ε of a plan on this page is ${report.smallest}.`;
      plan.replaceChildren(element("h2", `No plan for ε = ${target}`), element("p", `No plan costs so little.${reach}`));
      return;
    }
    const several = chosen.outcomes.length > 1;
    const outcomes = chosen.outcomes.map((outcome) =>
      element("li", several ? `${outcome.probability}: ${outcome.recipe}` : outcome.recipe));
    const facts = element("dl", null);
    for (const [term, value] of [
      [several ? "release one, drawn" : "release", element("ul", null, ...outcomes)],
      ["achieved ε", chosen.epsilonShown],
      [report.utility, chosen.utilityShown],
      ["theorem", chosen.theorem],
    ]) facts.append(element("dt", term), element("dd", null, value));
    const parts = [element("h2", `Recommended plan for ε = ${target}`), facts];
    if (chosen.final) {
      parts.push(element("p", "Final: it holds only if nothing else of the runs it uses is ever released, " +
        "before or after. Of all plans on this page that are marked so, use one."));
    }
    parts.push(element("p", "Weights and noise are rounded here. Exactly this plan: ", element("code", chosen.command)));
    if (chosen.target < target) {
      parts.push(element("p", `This is the plan for target ε = ${chosen.targetShown}: ` +
        `a plan for a smaller target also meets a larger one. Planned for ${target} itself it may come out better.`));
    }
    if (chosen.falls) parts.push(element("p", chosen.falls));
    plan.replaceChildren(...parts);
  }

  function drawTarget(target, chosen) {
    for (const name of charts) {
      const chart = document.getElementById(name);
      if (chart.classList.contains("panel")) {
        veil(chart, target);
      } else if (name === "frontier") {
        const seen = chosen && chosen.epsilon !== null && chosen.utility !== null;
        const last = chart.data.length - 1;
        Plotly.restyle(chart, { x: [seen ? [chosen.epsilon] : []], y: [seen ? [chosen.utility] : []] }, [last]);
        Plotly.relayout(chart, { "shapes[0].x0": target, "shapes[0].x1": target });
      } else {
        Plotly.relayout(chart, { "shapes[0].y0": target, "shapes[0].y1": target });
      }
    }
  }

  function veil(chart, target) {
    const level = chart.layout.meta.log ? Math.log10(target) : target;
    const costs = chart.data[0].z;
    let inside = 0, within = 0;
    const size = costs.length;
    const above = costs.map((row, i) => row.map((cost, j) => {
      if (i + j >= size) return null;
      inside += 1;
      if (cost === null) return null;
      within += cost <= level;
      return Number(cost > level);
    }));
    const [, faded, border, ...lines] = chart.data;
    faded.z = above;
    Object.assign(border.contours, { start: level, end: level });
    for (const line of lines) line.line.color = line.meta.level > target ? "#666666" : line.meta.colour;
    Plotly.redraw(chart); // once for all of it
    document.querySelector(`[data-panel="${chart.id}"]`).textContent =
      `${shareInWords(within, inside)} of this triangle costs at most ε = ${target}.`;
  }

  function shareInWords(part, whole) {
    if (part === 0) return "Nothing";
    if (part === whole) return "All";
    const share = 100 * part / whole;
    return share < 1 ? "Less than 1%" : share > 99 ? "More than 99%" : `${Math.round(share)}%`;
  }

  function retarget() {
    const typed = input.value.trim().replace(",", ".");
    const target = typed === "" ? NaN : Number(typed);
    const good = Number.isFinite(target) && target > 0;
    input.setAttribute("aria-invalid", String(!good));
    if (!good) {
      message.textContent = "Enter a number above 0; nothing was changed.";
      return;
    }
    const chosen = chosenPlan(target);
    message.textContent = chosen
      ? `costs ε = ${chosen.epsilonShown}`
      : report.smallest === null ? "no plan" : `no plan; smallest reached: ${report.smallest}`;
    describe(chosen, target);
    if (drawn) drawTarget(target, chosen);
  }

  // The plan is there at once, whatever has been drawn by then.
  document.getElementById("target-form").addEventListener("submit", (event) => event.preventDefault());
  input.addEventListener("input", retarget);
  retarget();
  drawCharts(() => {
    drawn = true;
    retarget();
  });
}
