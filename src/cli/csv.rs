//! Files of comma-separated values (RFC 4180): quotes, `""` within them, any end of line, a byte order mark.

/// One record, with the line on which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// From 1.
    pub line: usize,
    /// Values.
    pub fields: Vec<String>,
}

/// Why a file cannot be read, and on which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct CsvError {
    /// From 1.
    pub line: usize,
    /// In plain words.
    pub problem: &'static str,
}

/// The records of a file; empty lines are none.
///
/// # Errors
/// Where a quote is not closed, or is in the middle of a value.
pub fn records(text: &str) -> Result<Vec<Record>, CsvError> {
    let mut letters = text.strip_prefix('\u{feff}').unwrap_or(text).chars().peekable();
    let (mut all, mut line) = (Vec::new(), 1);
    while letters.peek().is_some() {
        let mut record = Record { line, fields: Vec::new() };
        loop {
            let (field, is_quoted) = match letters.next_if_eq(&'"') {
                Some(_) => (quoted(&mut letters, &mut line)?, true),
                None => (plain(&mut letters, line)?, false),
            };
            record.fields.push(field);
            match letters.next() {
                Some(',') => {}
                Some('\r') if letters.next_if_eq(&'\n').is_some() => break,
                Some('\n' | '\r') | None => break,
                Some(_) if is_quoted => {
                    return Err(CsvError { line, problem: "text after the closing quote; put a comma there" });
                }
                Some(_) => {}
            }
        }
        line += 1;
        if record.fields.iter().any(|field| !field.is_empty()) {
            all.push(record);
        }
    }
    Ok(all)
}

type Letters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn plain(letters: &mut Letters<'_>, line: usize) -> Result<String, CsvError> {
    let mut field = String::new();
    while let Some(letter) = letters.next_if(|letter| !matches!(letter, ',' | '\n' | '\r')) {
        if letter == '"' {
            return Err(CsvError {
                line,
                problem: "a quote in the middle of a value; quote all of it, and double the quote",
            });
        }
        field.push(letter);
    }
    Ok(field.trim().to_owned())
}

fn quoted(letters: &mut Letters<'_>, line: &mut usize) -> Result<String, CsvError> {
    let (mut field, begun) = (String::new(), *line);
    loop {
        match letters.next() {
            Some('"') if letters.next_if_eq(&'"').is_some() => field.push('"'),
            Some('"') => return Ok(field),
            Some(letter) => {
                *line += usize::from(letter == '\n');
                field.push(letter);
            }
            None => return Err(CsvError { line: begun, problem: "a quote that is never closed" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, Vec<String>)> {
        records(text).unwrap().into_iter().map(|record| (record.line, record.fields)).collect()
    }

    #[test]
    fn files_of_every_program_are_read() {
        let row = |line, fields: &[&str]| (line, fields.iter().map(|field| (*field).to_owned()).collect::<Vec<_>>());
        let expected = vec![row(1, &["name", "full_name"]), row(2, &["anna", "Ann, \"A\" B"]), row(4, &["bob", ""])];
        for end in ["\n", "\r\n", "\r"] {
            let lines = ["name,full_name", "anna,\"Ann, \"\"A\"\" B\"", "", "bob,"].join(end);
            assert_eq!(read(&lines), expected, "{end:?}");
            assert_eq!(read(&format!("\u{feff}{lines}{end}")), expected, "{end:?}");
        }
        assert_eq!(read(""), []);
        assert_eq!(read(" a , b \n"), [row(1, &["a", "b"])]);
        assert_eq!(read("\"two\nlines\",x\ny\n"), [row(1, &["two\nlines", "x"]), row(3, &["y"])]);
    }

    #[test]
    fn faults_have_a_line() {
        for (text, line, words) in [
            ("a\n\"b", 2, "never closed"),
            ("a\nb \"c\"\n", 2, "middle of a value"),
            ("a\n\n\"b\"c\n", 3, "after the closing quote"),
        ] {
            let error = records(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
