// Package steps runs an ordered list of named steps, journals its progress, and
// undoes the steps in reverse order when one fails or when a crash left the list
// incomplete.
//
// It knows no technology and owns no goroutine. The agent's ADD is such a list, to
// which components add steps.
package steps

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Step is one step over a subject of type T. Do and Undo must be idempotent:
// after a crash it is not known whether the last one took effect.
type Step[T any] struct {
	Name string
	Do   func(ctx context.Context, subject T) error
	// Undo reverts what Do did, fully or partly; nil: nothing to revert.
	Undo func(ctx context.Context, subject T) error
	// Journal makes the list's Journal be called before Do: from here on a crash
	// leaves something to revert.
	Journal bool
}

// List is an ordered list of steps.
type List[T any] struct {
	Steps []Step[T]
	// Journal writes durably that the subject is about to take step at; an empty
	// at says that all are done. When it fails, the steps are undone.
	Journal func(ctx context.Context, subject T, at string) error
	// Observe is called with each step's duration and result. May be nil.
	Observe func(step string, undo bool, took time.Duration, err error)
	// UndoTimeout bounds the undoing, which continues when the context of Run has
	// ended; 30 s when 0.
	UndoTimeout time.Duration
}

// Failure is the error of Run: the step that failed, and what could not be undone.
type Failure struct {
	Step string
	Err  error
	// Undo is nil when all steps were undone.
	Undo error
}

func (f *Failure) Error() string {
	if f.Undo != nil {
		return fmt.Sprintf("%s: %v (undo: %v)", f.Step, f.Err, f.Undo)
	}
	return fmt.Sprintf("%s: %v", f.Step, f.Err)
}

// Unwrap makes both causes visible to errors.Is and errors.As.
func (f *Failure) Unwrap() []error { return []error{f.Err, f.Undo} }

// Run does the steps in order. When one fails, or ctx ends between two, those
// begun are undone in reverse and the error is a *Failure.
func (l *List[T]) Run(ctx context.Context, subject T) error {
	for i, s := range l.Steps {
		err := context.Cause(ctx)
		begun := i
		if err == nil && s.Journal {
			err = l.Journal(ctx, subject, s.Name)
		}
		if err == nil {
			begun = i + 1
			err = l.observed(s.Name, false, func() error { return s.Do(ctx, subject) })
		}
		if err != nil {
			return &Failure{Step: s.Name, Err: err, Undo: l.undo(ctx, subject, begun)}
		}
	}
	if err := l.Journal(ctx, subject, ""); err != nil {
		return &Failure{Step: "journal", Err: err, Undo: l.undo(ctx, subject, len(l.Steps))}
	}
	return nil
}

// undo undoes the first n steps, last first. One that fails does not prevent
// the others.
func (l *List[T]) undo(ctx context.Context, subject T, n int) error {
	timeout := l.UndoTimeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	var problems error
	for i := n - 1; i >= 0; i-- {
		s := l.Steps[i]
		if s.Undo == nil {
			continue
		}
		if err := l.observed(s.Name, true, func() error { return s.Undo(ctx, subject) }); err != nil {
			problems = errors.Join(problems, fmt.Errorf("undo %s: %w", s.Name, err))
		}
	}
	return problems
}

func (l *List[T]) observed(name string, undo bool, f func() error) error {
	began := time.Now()
	err := f()
	if l.Observe != nil {
		l.Observe(name, undo, time.Since(began), err)
	}
	return err
}
