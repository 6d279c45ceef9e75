package display

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// loan is text that an action has pasted and that is still on the clipboard. On a busy machine, a
// program may read it long after it first requested it: a browser does so in several processes. So the
// previous content returns after a delay, or when it is needed.
type loan struct {
	before  map[x11.Selection]x11.Content
	offers  map[x11.Selection]*x11.Offer
	latency time.Duration // of the program
}

// lend records a loan, which ends after the delay.
func (d *desktop) lend(l *loan) {
	d.lending.Lock()
	d.loan = l
	d.lending.Unlock()
	select {
	case d.lent <- struct{}{}:
	default:
	}
}

// endLoan restores the content of the clipboard from before a paste, unless a program has replaced it since.
func (d *desktop) endLoan(ctx context.Context) error {
	d.lending.Lock()
	defer d.lending.Unlock()
	l := d.loan
	if l == nil {
		return nil
	}
	for _, o := range l.offers {
		if err := o.WaitQuiet(ctx, pasteQuiet, l.latency); err != nil {
			return err
		}
	}
	d.loan = nil
	return l.end(ctx, d.conn)
}

func (l *loan) end(ctx context.Context, conn *x11.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var errs []error
	for sel, content := range l.before {
		if l.offers[sel] == nil {
			continue // the paste failed before
		}
		ours, err := conn.Offers(ctx, sel, l.offers[sel])
		switch {
		case err != nil || !ours:
		case len(content) == 0:
			err = conn.ClearSelection(ctx, sel)
		default:
			_, err = conn.SetSelection(ctx, sel, content)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// endLoans ends loans after the delay.
func (d *desktop) endLoans(life context.Context) {
	timer := time.NewTimer(d.s.cfg.PasteTime)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-d.lent:
			timer.Reset(d.s.cfg.PasteTime)
		case <-timer.C:
			if err := d.endLoan(life); err != nil && life.Err() == nil {
				d.s.cfg.Log.Warn("cannot restore the clipboard after a paste", "error", err)
			}
		}
	}
}

// needsClipboard reports whether an action may paste, or copy. Before such an action, the loan ends when the program has
// requested nothing for a while: 40 times its longest pause between two requests or its response time, at most 5 s. A program
// that pauses for longer within one paste gets the content from before.
func needsClipboard(a action) bool {
	switch a := a.(type) {
	case *MoveTo, *MoveRel, *Scroll, *Wait:
		return false
	case *Typing:
		return a.Clipboard == nil || *a.Clipboard
	case *Press:
		key := strings.ToLower(a.Key)
		return key != "enter" && key != "return" && key != "tab"
	}
	return true
}
