//! [`Table`]: aligned, so that it reads in a terminal, and Markdown, so that it reads in the docs.

use std::fmt;

/// The first column is what is measured, the others are numbers.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(head: [&str; N]) -> Table {
        Table { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.rows[0].len());
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if column == 0 {
                    write!(f, "| {cell:<width$} |")?;
                } else {
                    write!(f, " {cell:>width$} |")?;
                }
            }
            writeln!(f)?;
            if number == 0 {
                write!(f, "| {} |", "-".repeat(widths[0]))?;
                widths[1..]
                    .iter()
                    .try_for_each(|width| write!(f, " {}: |", "-".repeat(width.saturating_sub(1))))?;
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_numbers_to_the_right() {
        let mut table = Table::new(["what", "time"]);
        table.row(["a".to_owned(), "3 µs".to_owned()]);
        table.row(["longer".to_owned(), "12 µs".to_owned()]);
        let expect = "| what   |  time |\n| ------ | ----: |\n| a      |  3 µs |\n| longer | 12 µs |\n";
        assert_eq!(table.to_string(), expect);
    }
}
