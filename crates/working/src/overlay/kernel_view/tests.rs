//! Sequences of moves, lookups, opens and closes, and what each number may be used for after them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use icechunkfs_base::error::ErrorKind;

/// Numbers of the base.
const A: Ino = Ino(1000);
const B: Ino = Ino(2000);
/// Number of the working tree.
const OWN: Ino = icechunkfs_tree::inodes::MADE.at(7);

/// Open of file `number` to read, which begins now.
fn reading(view: &KernelView, number: Ino) -> Opening {
    Opening { number, since: view.moves.now(), has_waited: false, is_patient: true, writes: false }
}

fn writing(view: &KernelView, number: Ino) -> Opening {
    Opening { writes: true, ..reading(view, number) }
}

/// Returns true if the open is granted, false if it is refused as the number is of no file. It must
/// not have to wait.
fn is_granted(view: &KernelView, opening: Opening) -> bool {
    match view.may_open(opening) {
        Ok(Admission::Granted) => true,
        Ok(Admission::Later(_)) => panic!("{opening:?} has to wait"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Stale);
            false
        }
    }
}

fn waits(view: &KernelView, opening: Opening) -> bool {
    matches!(view.may_open(opening), Ok(Admission::Later(_)))
}

/// A move after which these numbers mean other files.
fn moved(view: &mut KernelView, of_other_files: &[Ino]) {
    view.hold_opens();
    view.move_on(HashSet::new(), of_other_files.iter().copied());
}

#[test]
fn everything_may_be_opened_before_the_first_move() {
    let view = KernelView::default();
    for number in [A, OWN] {
        assert!(is_granted(&view, reading(&view, number)) && is_granted(&view, writing(&view, number)));
    }
    assert!(!view.moves.is_settling());
}

#[test]
fn opens_wait_while_a_move_is_told() {
    let mut view = KernelView::default();
    view.hold_opens();
    assert!(waits(&view, reading(&view, A)) && waits(&view, writing(&view, OWN)));
    view.move_on(HashSet::new(), std::iter::empty());
    assert!(waits(&view, reading(&view, A)));
    view.settle();
    assert!(is_granted(&view, reading(&view, A)));
}

#[test]
fn an_impatient_open_does_not_wait() {
    let mut view = KernelView::default();
    view.hold_opens();
    assert!(is_granted(&view, Opening { is_patient: false, ..reading(&view, A) }));
}

#[test]
fn all_that_wait_are_woken_once_the_move_is_told() {
    let mut view = KernelView::default();
    view.hold_opens();
    view.hold_opens();
    let Ok(Admission::Later(first)) = view.may_open(reading(&view, A)) else { panic!("granted") };
    let Ok(Admission::Later(second)) = view.may_open(reading(&view, B)) else { panic!("granted") };
    assert!(first.has_changed().is_ok() && second.has_changed().is_ok());
    view.settle();
    assert!(first.has_changed().is_err() && second.has_changed().is_err(), "a closed channel is the signal");
}

#[test]
fn a_move_that_failed_lets_files_be_opened_again() {
    let mut view = KernelView::default();
    let before = view.moves.now();
    view.hold_opens();
    view.settle();
    assert!(is_granted(&view, reading(&view, A)));
    assert_eq!(view.moves.now(), before);
}

#[test]
fn a_second_move_holds_opens_anew() {
    let mut view = KernelView::default();
    moved(&mut view, &[]);
    view.settle();
    moved(&mut view, &[]);
    assert!(waits(&view, reading(&view, A)));
}

#[test]
fn each_move_is_another_moment() {
    let mut view = KernelView::default();
    let mut moments = vec![view.moves.now()];
    for _ in 0..3 {
        moved(&mut view, &[]);
        view.settle();
        moments.push(view.moves.now());
    }
    moments.dedup();
    assert_eq!(moments.len(), 4);
    assert_eq!(moments.last(), Some(&Moment::after_moves(3)));
}

#[test]
fn a_move_settles_once_it_is_told() {
    let mut view = KernelView::default();
    let moves = Arc::clone(view.moves());
    moved(&mut view, &[]);
    assert!(moves.is_settling());
    view.settle();
    assert!(!moves.is_settling());
}

#[test]
fn a_number_of_another_file_is_refused_until_it_is_looked_up() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    view.settle();
    assert!(!is_granted(&view, reading(&view, A)), "the kernel found it before the move");
    assert!(is_granted(&view, reading(&view, B)));
    view.on_lookup(A);
    assert!(is_granted(&view, reading(&view, A)));
}

#[test]
fn an_open_from_before_the_move_is_refused_even_after_a_lookup() {
    let mut view = KernelView::default();
    let early = reading(&view, A);
    moved(&mut view, &[A]);
    view.on_lookup(A);
    view.settle();
    assert!(!is_granted(&view, early), "another request has looked the name up");
    assert!(is_granted(&view, reading(&view, A)));
}

#[test]
fn an_open_that_waited_for_the_move_is_refused() {
    let mut view = KernelView::default();
    view.hold_opens();
    let waiting = reading(&view, A);
    assert!(waits(&view, waiting));
    view.move_on(HashSet::new(), [A].into_iter());
    view.on_lookup(A);
    view.settle();
    assert!(!is_granted(&view, Opening { has_waited: true, ..waiting }));
}

#[test]
fn an_open_that_waited_may_have_a_number_that_means_the_same() {
    let mut view = KernelView::default();
    view.hold_opens();
    let waiting = reading(&view, B);
    view.move_on(HashSet::new(), [A].into_iter());
    view.settle();
    assert!(is_granted(&view, Opening { has_waited: true, ..waiting }));
}

#[test]
fn a_lookup_before_the_move_does_not_count() {
    let mut view = KernelView::default();
    view.on_lookup(A);
    moved(&mut view, &[A]);
    view.settle();
    assert!(!is_granted(&view, reading(&view, A)));
}

#[test]
fn a_lookup_of_another_number_does_not_count() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    view.on_lookup(B);
    view.settle();
    assert!(!is_granted(&view, reading(&view, A)));
}

#[test]
fn the_next_move_forgets_the_other_files_of_the_last() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    view.settle();
    moved(&mut view, &[B]);
    view.settle();
    assert!(is_granted(&view, reading(&view, A)), "the kernel was told of the first move meanwhile");
    assert!(!is_granted(&view, reading(&view, B)));
}

#[test]
fn the_next_move_may_name_the_same_number_again() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    view.on_lookup(A);
    view.settle();
    moved(&mut view, &[A]);
    view.settle();
    assert!(!is_granted(&view, reading(&view, A)), "it was looked up between the moves");
}

#[test]
fn changes_by_the_number_of_another_file_are_refused_alike() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    assert!(view.may_use(A, false).is_err());
    view.on_lookup(A);
    assert!(view.may_use(A, false).is_ok());
    assert!(view.may_use(A, true).is_err(), "the request is older than the move");
    assert!(view.may_use(B, true).is_ok());
}

#[test]
fn an_old_version_is_read_and_never_changed() {
    for number in [A, OWN] {
        let mut view = KernelView::default();
        moved(&mut view, &[]);
        view.keep_old_versions([number].into_iter());
        view.settle();
        assert!(is_granted(&view, reading(&view, number)));
        assert!(!is_granted(&view, writing(&view, number)));
        assert!(view.may_change(number).is_err() && view.may_change(B).is_ok());
        assert!(view.is_old_version(number));
    }
}

#[test]
fn an_old_version_stays_one_through_other_moves() {
    let mut view = KernelView::default();
    moved(&mut view, &[]);
    view.keep_old_versions([A].into_iter());
    view.settle();
    moved(&mut view, &[]);
    view.settle();
    assert!(view.is_old_version(A) && view.may_change(A).is_err());
}

#[test]
fn a_number_of_the_base_is_outdated_once_its_old_version_is_closed() {
    let mut view = KernelView::default();
    view.keep_old_versions([A].into_iter());
    assert!(view.take_outdated().is_empty());
    view.on_gone(A, false);
    assert!(!view.is_old_version(A) && view.may_change(A).is_ok());
    assert_eq!(view.take_outdated(), [A]);
    assert!(view.take_outdated().is_empty(), "each is told once");
}

#[test]
fn a_number_of_the_working_tree_is_never_outdated() {
    let mut view = KernelView::default();
    view.keep_old_versions([OWN].into_iter());
    view.on_gone(OWN, false);
    assert!(view.take_outdated().is_empty(), "no other file gets it");
}

#[test]
fn a_file_that_was_no_old_version_outdates_nothing() {
    let mut view = KernelView::default();
    view.on_gone(A, false);
    assert!(view.take_outdated().is_empty());
}

#[test]
fn a_changed_file_that_is_gone_outdates_the_number_of_the_base() {
    let mut view = KernelView::default();
    view.on_gone(A, true);
    view.on_gone(OWN, true);
    assert_eq!(view.take_outdated(), [A], "the base may show there again, after a discard");
}

#[test]
fn an_old_version_that_is_gone_twice_is_outdated_once() {
    let mut view = KernelView::default();
    view.keep_old_versions([A, A].into_iter());
    view.on_gone(A, false);
    view.on_gone(A, false);
    assert_eq!(view.take_outdated(), [A]);
}

#[test]
fn a_number_may_be_an_old_version_again() {
    let mut view = KernelView::default();
    view.keep_old_versions([A].into_iter());
    view.on_gone(A, false);
    view.keep_old_versions([A].into_iter());
    assert!(view.may_change(A).is_err());
    view.on_gone(A, false);
    assert_eq!(view.take_outdated(), [A, A], "told after each");
}

#[test]
fn outdated_numbers_wait_for_a_move_to_be_told() {
    let mut view = KernelView::default();
    view.keep_old_versions([A].into_iter());
    view.on_gone(A, false);
    moved(&mut view, &[]);
    view.settle();
    assert_eq!(view.take_outdated(), [A]);
}

#[test]
fn old_versions_are_counted() {
    let mut view = KernelView::default();
    view.keep_old_versions([A, OWN, A].into_iter());
    assert_eq!(view.old_version_count(), 2);
    let mut numbers = view.old_versions();
    numbers.sort();
    assert_eq!(numbers, [A, OWN]);
    view.on_gone(A, false);
    assert_eq!(view.old_versions(), [OWN]);
}

#[test]
fn the_kernel_knows_old_versions_and_vacant_numbers_as_what_they_are() {
    let mut view = KernelView::default();
    assert!(!view.knows_elsewhere(A));
    view.keep_old_versions([A].into_iter());
    view.move_on(HashSet::from([B]), std::iter::empty());
    assert!(view.knows_elsewhere(A) && view.knows_elsewhere(B) && !view.knows_elsewhere(OWN));
}

#[test]
fn vacant_numbers_are_those_of_the_last_move() {
    let mut view = KernelView::default();
    view.move_on(HashSet::from([A]), std::iter::empty());
    view.move_on(HashSet::from([B]), std::iter::empty());
    assert!(!view.knows_elsewhere(A) && view.knows_elsewhere(B));
}

#[test]
fn a_vacant_number_may_be_opened_and_changed() {
    let mut view = KernelView::default();
    view.move_on(HashSet::from([A]), std::iter::empty());
    view.settle();
    assert!(is_granted(&view, reading(&view, A)) && is_granted(&view, writing(&view, A)));
}

#[test]
fn a_number_that_was_refused_loses_its_pages_at_the_next_open_alone() {
    let mut view = KernelView::default();
    view.on_refused(A);
    assert!(!view.on_opened(B));
    assert!(view.on_opened(A));
    assert!(!view.on_opened(A), "the kernel has dropped them");
}

#[test]
fn a_refusal_outlasts_moves() {
    let mut view = KernelView::default();
    view.on_refused(A);
    moved(&mut view, &[]);
    view.settle();
    assert!(view.on_opened(A));
}

#[test]
fn a_number_that_was_never_refused_keeps_its_pages() {
    let mut view = KernelView::default();
    assert!(!view.on_opened(A));
}

#[test]
fn a_held_open_is_told_to_wait_before_it_is_refused() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    view.keep_old_versions([B].into_iter());
    assert!(waits(&view, reading(&view, A)) && waits(&view, writing(&view, B)), "the answer may change meanwhile");
    view.settle();
    assert!(!is_granted(&view, reading(&view, A)) && !is_granted(&view, writing(&view, B)));
}

#[test]
fn an_impatient_open_is_refused_as_a_patient_one_would_be_later() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    view.keep_old_versions([B].into_iter());
    let impatient = |opening| Opening { is_patient: false, ..opening };
    assert!(!is_granted(&view, impatient(reading(&view, A))) && !is_granted(&view, impatient(writing(&view, B))));
    assert!(is_granted(&view, impatient(reading(&view, B))) && is_granted(&view, impatient(writing(&view, OWN))));
}

#[test]
fn an_old_version_whose_number_means_another_file_is_read_after_a_lookup_and_never_changed() {
    let mut view = KernelView::default();
    moved(&mut view, &[A]);
    view.keep_old_versions([A].into_iter());
    view.settle();
    assert!(!is_granted(&view, reading(&view, A)));
    view.on_lookup(A);
    assert!(is_granted(&view, reading(&view, A)) && !is_granted(&view, writing(&view, A)));
    view.on_gone(A, false);
    assert!(is_granted(&view, writing(&view, A)));
}

#[test]
fn a_move_without_vacant_numbers_forgets_those_of_the_last() {
    let mut view = KernelView::default();
    view.move_on(HashSet::from([A]), std::iter::empty());
    view.settle();
    moved(&mut view, &[]);
    assert!(!view.knows_elsewhere(A));
}

#[test]
fn a_view_that_holds_nothing_settles_without_a_trace() {
    let mut view = KernelView::default();
    let before = view.moves.now();
    view.settle();
    view.settle();
    assert!(view.moves.now() == before && !view.moves.is_settling() && is_granted(&view, reading(&view, A)));
}

#[test]
fn refusals_of_several_numbers_are_kept_apart() {
    let mut view = KernelView::default();
    [A, B, A].into_iter().for_each(|number| view.on_refused(number));
    assert!(view.on_opened(B) && !view.on_opened(B));
    assert!(view.on_opened(A) && !view.on_opened(A), "twice refused is refused");
}

/// Event of a random sequence.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Hold,
    Move { vacant: Vec<Ino>, others: Vec<Ino> },
    Settle,
    Keep(Ino),
    Gone(Ino, bool),
    Lookup(Ino),
    Refused(Ino),
    Opened(Ino),
    Taken,
}

/// Answers by the whole history, as the table at the top of the module has them.
#[derive(Debug)]
struct History(Vec<Event>);

impl History {
    /// Returns the events since the last one that `is_it`, and that one.
    fn since(&self, is_it: impl Fn(&Event) -> bool) -> Option<(&Event, &[Event])> {
        let (before, last) = self.0.split_at(self.0.iter().rposition(is_it)?);
        assert!(before.len() < self.0.len());
        last.split_first()
    }

    fn is_old(&self, number: Ino) -> bool {
        let last = |event: &Event| matches!(event, Event::Keep(one) | Event::Gone(one, _) if *one == number);
        self.since(last).is_some_and(|(event, _)| matches!(event, Event::Keep(_)))
    }

    fn may_use(&self, number: Ino, is_late: bool) -> bool {
        let Some((Event::Move { others, .. }, since)) = self.since(|event| matches!(event, Event::Move { .. })) else {
            return true;
        };
        !others.contains(&number) || (!is_late && since.contains(&Event::Lookup(number)))
    }

    fn is_vacant(&self, number: Ino) -> bool {
        let last = self.since(|event| matches!(event, Event::Move { .. }));
        matches!(last, Some((Event::Move { vacant, .. }, _)) if vacant.contains(&number))
    }

    fn is_held(&self) -> bool {
        let last = self.since(|event| matches!(event, Event::Hold | Event::Settle));
        matches!(last, Some((Event::Hold, _)))
    }

    fn drops_pages(&self, number: Ino) -> bool {
        let of_it = |event: &Event| *event == Event::Refused(number) || *event == Event::Opened(number);
        self.since(of_it).is_some_and(|(event, _)| matches!(event, Event::Refused(_)))
    }

    fn outdated(&self) -> Vec<Ino> {
        let begin = self.0.iter().rposition(|event| *event == Event::Taken).map_or(0, |at| at + 1);
        let is_told = |at: usize| match self.0.get(at) {
            Some(Event::Gone(number, had_own)) => {
                let before = History(self.0.iter().take(at).cloned().collect());
                (number.is_of_base() && (*had_own || before.is_old(*number))).then_some(*number)
            }
            _ => None,
        };
        (begin..self.0.len()).filter_map(is_told).collect()
    }
}

#[test]
fn any_sequence_is_answered_as_its_history_says() {
    let numbers = [A, B, OWN];
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let mut view = KernelView::default();
        let mut history = History(Vec::new());
        for _ in 0..60 {
            let number = numbers.into_iter().nth(random(3) as usize).unwrap();
            let some: Vec<Ino> = numbers.into_iter().filter(|_| random(3) == 0).collect();
            let event = match random(9) {
                0 => Event::Hold,
                1 => Event::Move { vacant: some, others: numbers.into_iter().filter(|_| random(3) == 0).collect() },
                2 => Event::Settle,
                3 => Event::Keep(number),
                4 => Event::Gone(number, random(2) == 0),
                5 => Event::Lookup(number),
                6 => Event::Refused(number),
                7 => Event::Opened(number),
                _ => Event::Taken,
            };
            match &event {
                Event::Hold => view.hold_opens(),
                Event::Move { vacant, others } => {
                    view.move_on(vacant.iter().copied().collect(), others.iter().copied())
                }
                Event::Settle => view.settle(),
                Event::Keep(number) => view.keep_old_versions([*number].into_iter()),
                Event::Gone(number, had_own) => view.on_gone(*number, *had_own),
                Event::Lookup(number) => view.on_lookup(*number),
                Event::Refused(number) => view.on_refused(*number),
                Event::Opened(number) => {
                    assert_eq!(view.on_opened(*number), history.drops_pages(*number), "{history:?}")
                }
                Event::Taken => assert_eq!(view.take_outdated(), history.outdated(), "{history:?}"),
            }
            history.0.push(event);
            for number in numbers {
                for is_late in [false, true] {
                    let expected = history.may_use(number, is_late);
                    assert_eq!(view.may_use(number, is_late).is_ok(), expected, "{number:?} {is_late} {history:?}");
                }
                let is_old = history.is_old(number);
                assert_eq!(view.may_change(number).is_err(), is_old, "{number:?} {history:?}");
                assert_eq!(view.knows_elsewhere(number), is_old || history.is_vacant(number), "{number:?} {history:?}");
                let opening = writing(&view, number);
                let expected = match (history.is_held(), history.may_use(number, false) && !is_old) {
                    (true, _) => "later",
                    (false, true) => "granted",
                    (false, false) => "refused",
                };
                let found = match view.may_open(opening) {
                    Ok(Admission::Later(_)) => "later",
                    Ok(Admission::Granted) => "granted",
                    Err(_) => "refused",
                };
                assert_eq!(found, expected, "{number:?} {history:?}");
            }
        }
    }
}
