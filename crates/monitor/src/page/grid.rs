//! The module grid as SVG: a column for each level, a line for each path.

use std::collections::BTreeMap;
use std::fmt::Write;

use dipaco_telemetry::LiveRun;
use dipaco_topology::ModuleId;

const COLUMN: f64 = 220.0;
const ROW: f64 = 44.0;
const BOX: (f64, f64) = (130.0, 32.0);
/// Most modules in a column, and most paths with a line. More would be unreadable.
const MOST_MODULES: usize = 32;
const MOST_PATHS: usize = 64;

/// The grid. Modules beyond the picture are counted below their column.
pub(super) fn render(live: &LiveRun) -> String {
    let levels = live.modules.iter().map(|module| usize::from(module.module.level) + 1).max().unwrap_or(0);
    let mut columns: Vec<Vec<_>> = vec![Vec::new(); levels];
    for module in &live.modules {
        columns[usize::from(module.module.level)].push(module);
    }
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0).min(MOST_MODULES);
    let left_out = columns.iter().any(|column| column.len() > MOST_MODULES);
    let height = 20.0 + ROW * rows as f64 + if left_out { 24.0 } else { 0.0 };
    let width = COLUMN * levels as f64;
    let mut places: BTreeMap<ModuleId, (f64, f64)> = BTreeMap::new();
    for (level, column) in columns.iter().enumerate() {
        let drawn = column.len().min(MOST_MODULES);
        for (row, module) in column.iter().take(MOST_MODULES).enumerate() {
            // Short columns stand in the middle.
            let y = 20.0 + ROW * (row as f64 + (rows - drawn) as f64 / 2.0);
            places.insert(module.module, (COLUMN * level as f64, y));
        }
    }
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {height}\" width={width} role=img aria-label=\"Modules and paths\">"
    );
    if live.paths.len() <= MOST_PATHS {
        for path in &live.paths {
            let colour = match (path.quarantined, &path.lease) {
                (true, _) => "var(--bad)",
                (false, Some(_)) => "var(--busy)",
                (false, None) => "var(--line)",
            };
            for pair in path.modules.windows(2) {
                let (Some(from), Some(to)) = (places.get(&pair[0]), places.get(&pair[1])) else { continue };
                let middle = BOX.1 / 2.0;
                let _ = write!(
                    out,
                    "<line x1={} y1={} x2={} y2={} stroke=\"{colour}\" stroke-width=2><title>path {}</title></line>",
                    from.0 + BOX.0,
                    from.1 + middle,
                    to.0,
                    to.1 + middle,
                    path.path
                );
            }
        }
    }
    for (level, column) in columns.iter().enumerate() {
        let x = COLUMN * level as f64;
        let _ = write!(out, "<text x={x} y=12>level {level}</text>");
        for module in column {
            let Some(&(x, y)) = places.get(&module.module) else { continue };
            let versions: Vec<String> = module.versions.iter().map(ToString::to_string).collect();
            let _ = write!(
                out,
                "<rect x={x} y={y} width={} height={} rx=4 fill=\"var(--line)\"/><text x={} y={}>{} · {} steps</text>\
                 <title>{} paths</title>",
                BOX.0,
                BOX.1,
                x + 8.0,
                y + 20.0,
                module.module,
                versions.join("/"),
                module.paths
            );
        }
        if let Some(more) = column.len().checked_sub(MOST_MODULES).filter(|more| *more > 0) {
            let _ = write!(out, "<text x={x} y={}>and {more} more</text>", height - 6.0);
        }
    }
    out.push_str("</svg>");
    out
}
