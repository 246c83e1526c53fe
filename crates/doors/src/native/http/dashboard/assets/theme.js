// Before the first paint: the colours that the reader chose last.
try {
  const theme = localStorage.getItem("forebay-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing follows the system.
}
