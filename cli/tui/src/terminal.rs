//! The real terminal: raw mode and the second screen while the view is shown, and the terminal as it was
//! after it, also after a panic or a signal.

use std::io::{self, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};

use crate::StartScreen;
use crate::app::{App, Flow};
use crate::look::Look;
use crate::source::RunSource;

/// How long one wait for a key takes; then signals are looked at.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Waits between two reads of the store.
const WAITS_PER_REFRESH: u32 = 5;

/// How the view ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalEnd {
    /// A key ended it.
    Quit,
    /// `stop` was set.
    Stopped,
}

/// Puts the terminal back when it is dropped.
struct TerminalGuard;

impl TerminalGuard {
    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        let guard = Self;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(guard)
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back. Errors cannot be reported: the terminal may be gone.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
    let _ = io::stdout().flush();
}

/// Shows the view until a key ends it or `stop` is set. The terminal is then as before.
///
/// # Errors
/// A sentence: the first screen cannot be read, or the terminal fails.
pub fn show(
    source: RunSource,
    look: Look,
    start: &StartScreen,
    stop: &Arc<AtomicBool>,
) -> Result<TerminalEnd, String> {
    // What cannot be opened is said on the ordinary screen.
    let mut app = App::new(source, look, start)?;
    let failed = |error: io::Error| format!("the terminal failed: {error}");
    let before = Arc::new(panic::take_hook());
    let then = Arc::clone(&before);
    panic::set_hook(Box::new(move |info| {
        restore();
        then(info);
    }));
    let guard = TerminalGuard::enter().map_err(failed)?;
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout())).map_err(failed)?;
    let end = run(&mut app, &mut terminal, stop).map_err(failed);
    drop(guard);
    panic::set_hook(Box::new(move |info| before(info)));
    end
}

fn run(
    app: &mut App,
    terminal: &mut Terminal<CrosstermBackend<io::Stdout>>,
    stop: &AtomicBool,
) -> io::Result<TerminalEnd> {
    let mut waits = 0;
    let mut is_drawn = false;
    loop {
        if stop.load(Ordering::Acquire) {
            return Ok(TerminalEnd::Stopped);
        }
        if !is_drawn {
            terminal.draw(|frame| app.draw(frame))?;
            is_drawn = true;
        }
        let wait = if app.is_busy() { Duration::ZERO } else { KEY_WAIT };
        if event::poll(wait)? {
            // All keys that are there are handled before the screen is drawn.
            loop {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        let flow = app.press(key);
                        if flow == Flow::Quit {
                            return Ok(TerminalEnd::Quit);
                        }
                    }
                    _ => {}
                }
                if !event::poll(Duration::ZERO)? {
                    break;
                }
            }
            is_drawn = false;
            continue;
        }
        if app.is_busy() {
            app.work();
            is_drawn = false;
            continue;
        }
        is_drawn &= !app.tick();
        waits += 1;
        if waits >= WAITS_PER_REFRESH {
            waits = 0;
            is_drawn &= !app.refresh();
        }
    }
}
