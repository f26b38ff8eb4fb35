// Runs before the first paint, so that the other theme does not flash.
try {
    const theme = localStorage.getItem("flashmoe.theme");
    if (theme === "light" || theme === "dark") {
        document.documentElement.dataset.theme = theme;
    }
} catch {
    // Storage is disabled: keeps the system's theme.
}
