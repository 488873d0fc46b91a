/** Charts answer back where they can; the still picture stays where they cannot, and is what a printer gets. */
function startCharts() {
  const theme = JSON.parse(element("chart-theme").textContent);
  const draw = async (figure) => {
    const live = figure.querySelector(".live"), still = figure.querySelector(".still");
    const room = figure.clientWidth - 30, isWords = figure.id === "figure-words", isNarrow = room < 500 && !isWords;
    // On a phone: one column.
    const set = (key, value) => (isNarrow && key === "columns" ? 1 : value);
    const spec = JSON.parse(figure.querySelector("script").textContent, set);
    spec.config = { ...theme, ...spec.config, background: "transparent" };
    for (const part of spec.concat ?? spec.vconcat ?? [spec]) if (isNarrow) part.width = Math.min(part.width, room - 130);
    live.hidden = false;
    try {
      await vegaEmbed(live, spec, {
        ast: true,  // expressions are interpreted: the page's policy allows no eval
        actions: false,
        bind: figure.querySelector(".inputs"),
        defaultStyle: false,
        renderer: "svg",
        tooltip: { disableDefaultStyle: true },
      });
      still.hidden = true;
      const box = figure.querySelector(".scroll");
      if (isWords) box.scrollLeft = box.scrollWidth;  // where the words of training are
    } catch (error) {
      live.hidden = true;
      console.warn(`A chart stays a picture: ${error}`);
    }
  };
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      watch.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "600px" });
  for (const figure of document.querySelectorAll("figure.chart")) watch.observe(figure);
}

if (window.vegaEmbed) startCharts();
