//! Tables that fit a terminal: less important columns are dropped, and long cells are cut. The caller gets
//! the names of the reduced columns to report them. Without a terminal and without `COLUMNS`, nothing is
//! reduced.

use std::io::{self, IsTerminal};

use crate::output::printable;

/// Columns between two cells.
const GAP: usize = 2;
/// The least number of characters that a cell is cut to.
const CELL_CHARS_MIN: usize = 8;
/// A smaller terminal width is ignored.
const COLUMNS_MIN: usize = 20;

/// How a column is reduced if the table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnFit {
    /// The column is never reduced.
    Fixed,
    /// The column is dropped; the lowest number first.
    Drop(u8),
    /// The cells are cut; the lowest first number goes first. Columns are dropped before a cell is cut below
    /// the second number of characters.
    Cut(u8, usize),
    /// The column is dropped if cutting is not enough.
    DropLast,
}

/// A column's header (a leading `>` aligns to the right), and how it is reduced.
pub(crate) type TableColumn = (&'static str, ColumnFit);

/// A table that fits.
#[derive(Debug)]
pub(crate) struct FittedTable {
    pub(crate) headers: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Headers of non-empty columns that are dropped or cut.
    pub(crate) reduced: Vec<&'static str>,
}

/// The width of the output: `$COLUMNS`, else that of the terminal; `None` if there is neither.
pub(crate) fn output_columns() -> Option<usize> {
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let terminal = || {
        let size = io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(io::stdout()).ok());
        size.flatten().map(|size| usize::from(size.ws_col))
    };
    named.or_else(terminal).filter(|columns| *columns >= COLUMNS_MIN)
}

/// A column while its table is fitted.
struct FittingColumn {
    header: &'static str,
    fit: ColumnFit,
    cells: Vec<String>,
    width: usize,
}

impl FittingColumn {
    /// The least width.
    fn width_min(&self) -> usize {
        match self.fit {
            ColumnFit::Cut(..) => self.width.min(char_count(self.header).max(CELL_CHARS_MIN)),
            ColumnFit::Fixed | ColumnFit::Drop(_) | ColumnFit::DropLast => self.width,
        }
    }

    /// The width that it keeps while other columns can be dropped.
    fn width_preferred(&self) -> usize {
        match self.fit {
            ColumnFit::Cut(_, wished) => self.width.min(wished),
            _ => self.width,
        }
    }

    fn cut(&mut self, to: usize) {
        self.width = to;
        for cell in self.cells.iter_mut().filter(|cell| char_count(cell) > to) {
            *cell = cell.chars().take(to.saturating_sub(1)).chain(['…']).collect();
        }
    }
}

/// Fits a table into `width` characters. Columns without any text are always dropped.
pub(crate) fn fit(columns: &[TableColumn], rows: &[Vec<String>], width: Option<usize>) -> FittedTable {
    let strip = |(at, (header, fit)): (usize, &TableColumn)| {
        let cells: Vec<_> =
            rows.iter().map(|row| row.get(at).map_or("".into(), |cell| printable(cell))).collect();
        let widest = cells.iter().map(|cell| char_count(cell)).max().unwrap_or(0);
        FittingColumn {
            header,
            fit: *fit,
            cells,
            width: widest.max(char_count(header.trim_start_matches('>'))),
        }
    };
    let mut strips: Vec<FittingColumn> = columns.iter().enumerate().map(strip).collect();
    strips.retain(|strip| strip.cells.iter().any(|cell| !cell.is_empty()));
    let mut reduced = Vec::new();
    if let Some(width) = width {
        drop_columns(&mut strips, width, &mut reduced);
        cut_cells(&mut strips, width, &mut reduced);
    }
    let row = |at: usize| strips.iter().map(|strip| strip.cells[at].clone()).collect();
    FittedTable {
        headers: strips.iter().map(|strip| strip.header).collect(),
        rows: (0..rows.len()).map(row).collect(),
        reduced,
    }
}

/// The number of characters by which columns of these widths exceed `width`.
fn excess(widths: impl Iterator<Item = usize>, width: usize) -> usize {
    widths.map(|one| one + GAP).sum::<usize>().saturating_sub(GAP + width)
}

fn drop_columns(strips: &mut Vec<FittingColumn>, width: usize, reduced: &mut Vec<&'static str>) {
    let mut drop = |strips: &mut Vec<FittingColumn>, at: usize| {
        reduced.push(strips.remove(at).header.trim_start_matches('>'));
    };
    while excess(strips.iter().map(FittingColumn::width_preferred), width) > 0 {
        let order =
            |strip: &FittingColumn| if let ColumnFit::Drop(order) = strip.fit { Some(order) } else { None };
        let Some(next) = strips.iter().filter_map(order).min() else { break };
        let Some(at) = strips.iter().position(|strip| order(strip) == Some(next)) else { break };
        drop(strips, at);
    }
    while excess(strips.iter().map(FittingColumn::width_min), width) > 0 {
        let Some(at) = strips.iter().rposition(|strip| strip.fit == ColumnFit::DropLast) else { break };
        drop(strips, at);
    }
}

fn cut_cells(strips: &mut [FittingColumn], width: usize, reduced: &mut Vec<&'static str>) {
    let mut cuts: Vec<(u8, usize)> = Vec::new();
    for (at, strip) in strips.iter().enumerate() {
        if let ColumnFit::Cut(order, _) = strip.fit {
            cuts.push((order, at));
        }
    }
    cuts.sort_unstable();
    for (_, at) in cuts {
        let excess = excess(strips.iter().map(|strip| strip.width), width);
        let to = strips[at].width.saturating_sub(excess).max(strips[at].width_min());
        if to < strips[at].width {
            reduced.push(strips[at].header.trim_start_matches('>'));
            strips[at].cut(to);
        }
    }
}

fn char_count(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_table_is_reduced_in_column_order() {
        let columns = [
            ("NAME", ColumnFit::Cut(2, 20)),
            ("N", ColumnFit::Fixed),
            ("MODEL", ColumnFit::Cut(1, 10)),
            ("F", ColumnFit::Drop(1)),
            ("T", ColumnFit::DropLast),
        ];
        let cell = |text: &str, count: usize| text.repeat(count);
        let rows = [vec![cell("a", 20), cell("1", 3), cell("m", 20), cell("f", 9), cell("t", 5)]];
        let shown = |width: Option<usize>| {
            let fitted = fit(&columns, &rows, width);
            (fitted.rows[0].join("|"), fitted.reduced.join(" "))
        };
        let of = |name: &str, model: &str, rest: &str| format!("{name}|111|{model}{rest}");
        let (name, model) = ("a".repeat(20), "m".repeat(20));
        assert_eq!(shown(None), (of(&name, &model, "|fffffffff|ttttt"), String::new()));
        assert_eq!(shown(Some(65)), (of(&name, &model, "|fffffffff|ttttt"), String::new()));
        assert_eq!(shown(Some(55)), (of(&name, "mmmmmmmmm…", "|fffffffff|ttttt"), "MODEL".into()));
        assert_eq!(shown(Some(54)), (of(&name, &model, "|ttttt"), "F".into()));
        assert_eq!(shown(Some(30)), (of("aaaaaaa…", "mmmmmmm…", "|ttttt"), "F MODEL NAME".into()));
        assert_eq!(shown(Some(29)), (of("aaaaaaaaaaaaa…", "mmmmmmm…", ""), "F T MODEL NAME".into()));
    }

    #[test]
    fn empty_column_is_omitted_silently() {
        let fitted = fit(
            &[("A", ColumnFit::Fixed), ("B", ColumnFit::Fixed)],
            &[vec!["x".into(), String::new()]],
            Some(80),
        );
        assert_eq!((fitted.headers, fitted.reduced), (vec!["A"], vec![]));
    }
}
