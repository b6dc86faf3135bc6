//! Tables that fit a terminal: less important columns are dropped, and long cells are cut. The caller gets
//! the names of the reduced columns to report them. Without a terminal and without `COLUMNS`, nothing is
//! reduced.

use std::io::{self, IsTerminal};

use crate::out::printable;

/// Columns between two cells.
const GAP: usize = 2;
/// The least number of characters that a cell is cut to.
const CELL_CHARS_MIN: usize = 8;
/// A smaller terminal width is ignored.
const COLUMNS_MIN: usize = 20;

/// How a column is reduced if the table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The column is never reduced.
    Fixed,
    /// The column is dropped; the lowest number first.
    Drop(u8),
    /// The cells are cut; the lowest first number goes first. Columns are dropped before a cell is cut below
    /// the second number of characters.
    Cut(u8, usize),
    /// The column is dropped if cutting is not enough.
    Last,
}

/// A column's header (a leading `>` aligns to the right), and how it is reduced.
pub(crate) type Column = (&'static str, Fit);

/// A table that fits.
#[derive(Debug)]
pub(crate) struct Fitted {
    pub(crate) headers: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Headers of non-empty columns that are dropped or cut.
    pub(crate) reduced: Vec<&'static str>,
}

/// The width of the output: `$COLUMNS`, else that of the terminal; `None` if there is neither.
pub(crate) fn columns() -> Option<usize> {
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let terminal = || {
        let size = io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(io::stdout()).ok());
        size.flatten().map(|size| usize::from(size.ws_col))
    };
    named.or_else(terminal).filter(|columns| *columns >= COLUMNS_MIN)
}

/// A column while its table is fitted.
struct Strip {
    header: &'static str,
    fit: Fit,
    cells: Vec<String>,
    width: usize,
}

impl Strip {
    /// The least width.
    fn least(&self) -> usize {
        match self.fit {
            Fit::Cut(..) => self.width.min(chars(self.header).max(CELL_CHARS_MIN)),
            Fit::Fixed | Fit::Drop(_) | Fit::Last => self.width,
        }
    }

    /// The width that it keeps while other columns can be dropped.
    fn wished(&self) -> usize {
        match self.fit {
            Fit::Cut(_, wished) => self.width.min(wished),
            _ => self.width,
        }
    }

    fn cut(&mut self, to: usize) {
        self.width = to;
        for cell in self.cells.iter_mut().filter(|cell| chars(cell) > to) {
            *cell = cell.chars().take(to.saturating_sub(1)).chain(['…']).collect();
        }
    }
}

/// Fits a table into `width` characters. Columns without any text are always dropped.
pub(crate) fn fit(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> Fitted {
    let strip = |(at, (header, fit)): (usize, &Column)| {
        let cells: Vec<_> =
            rows.iter().map(|row| row.get(at).map_or("".into(), |cell| printable(cell))).collect();
        let widest = cells.iter().map(|cell| chars(cell)).max().unwrap_or(0);
        Strip { header, fit: *fit, cells, width: widest.max(chars(header.trim_start_matches('>'))) }
    };
    let mut strips: Vec<Strip> = columns.iter().enumerate().map(strip).collect();
    strips.retain(|strip| strip.cells.iter().any(|cell| !cell.is_empty()));
    let mut reduced = Vec::new();
    if let Some(width) = width {
        drop_columns(&mut strips, width, &mut reduced);
        cut_cells(&mut strips, width, &mut reduced);
    }
    let row = |at: usize| strips.iter().map(|strip| strip.cells[at].clone()).collect();
    Fitted {
        headers: strips.iter().map(|strip| strip.header).collect(),
        rows: (0..rows.len()).map(row).collect(),
        reduced,
    }
}

/// The number of characters by which columns of these widths exceed `width`.
fn excess(widths: impl Iterator<Item = usize>, width: usize) -> usize {
    widths.map(|one| one + GAP).sum::<usize>().saturating_sub(GAP + width)
}

fn drop_columns(strips: &mut Vec<Strip>, width: usize, reduced: &mut Vec<&'static str>) {
    let mut drop = |strips: &mut Vec<Strip>, at: usize| {
        reduced.push(strips.remove(at).header.trim_start_matches('>'));
    };
    while excess(strips.iter().map(Strip::wished), width) > 0 {
        let order = |strip: &Strip| if let Fit::Drop(order) = strip.fit { Some(order) } else { None };
        let Some(next) = strips.iter().filter_map(order).min() else { break };
        let Some(at) = strips.iter().position(|strip| order(strip) == Some(next)) else { break };
        drop(strips, at);
    }
    while excess(strips.iter().map(Strip::least), width) > 0 {
        let Some(at) = strips.iter().rposition(|strip| strip.fit == Fit::Last) else { break };
        drop(strips, at);
    }
}

fn cut_cells(strips: &mut [Strip], width: usize, reduced: &mut Vec<&'static str>) {
    let mut cuts: Vec<(u8, usize)> = Vec::new();
    for (at, strip) in strips.iter().enumerate() {
        if let Fit::Cut(order, _) = strip.fit {
            cuts.push((order, at));
        }
    }
    cuts.sort_unstable();
    for (_, at) in cuts {
        let excess = excess(strips.iter().map(|strip| strip.width), width);
        let to = strips[at].width.saturating_sub(excess).max(strips[at].least());
        if to < strips[at].width {
            reduced.push(strips[at].header.trim_start_matches('>'));
            strips[at].cut(to);
        }
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gives_way_in_its_order() {
        let columns = [
            ("NAME", Fit::Cut(2, 20)),
            ("N", Fit::Fixed),
            ("MODEL", Fit::Cut(1, 10)),
            ("F", Fit::Drop(1)),
            ("T", Fit::Last),
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
    fn an_empty_column_is_left_out_without_a_word() {
        let fitted =
            fit(&[("A", Fit::Fixed), ("B", Fit::Fixed)], &[vec!["x".into(), String::new()]], Some(80));
        assert_eq!((fitted.headers, fitted.reduced), (vec!["A"], vec![]));
    }
}
