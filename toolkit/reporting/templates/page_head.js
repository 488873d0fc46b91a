document.documentElement.classList.add("js");
(function () {
  let kept = null;
  try { kept = localStorage.getItem("report-theme"); } catch (error) { /* files may have no storage */ }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { document.documentElement.dataset.theme = kept || (dark.matches ? "dark" : "light"); };
  apply();
  dark.addEventListener("change", () => { if (!kept) { apply(); dispatchEvent(new Event("themechange")); } });
  window.switchTheme = () => {
    kept = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("report-theme", kept); } catch (error) { /* then it lasts as long as the page */ }
    apply();
    dispatchEvent(new Event("themechange"));
  };
})();
