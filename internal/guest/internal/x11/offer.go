package x11

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

const (
	// pieceSize is the size of the data in a request. xgb does not support big requests, so the limit is 256 KiB.
	pieceSize = 128 << 10
	// maxTransfers is the maximum number of concurrent incremental transfers.
	maxTransfers = 32
	// transferIdle is how long a reader may take between two pieces.
	transferIdle = 30 * time.Second
	// maxQuiet is the maximum pause in WaitQuiet.
	maxQuiet = 5 * time.Second
	// quietFactor is the multiple of the longest pause between two requests that must pass without another one. A program with
	// little CPU time may pause for much longer than before.
	quietFactor = 40
	// maxRequests is the length of the queue of requests. Further requests are dropped.
	maxRequests = 256
)

// Offer is content that this connection offers in a selection, until it or another application replaces it, or the
// connection ends.
type Offer struct {
	time    xproto.Timestamp
	forms   map[xproto.Atom]form
	pending bool // ownership is being requested; guarded by selections.mu

	mu        sync.Mutex
	reads     uint64
	requested time.Time     // time of the last request of an application
	gap       time.Duration // longest time between two requests
	lost      bool
	changed   chan struct{} // closed and replaced at every change
}

// form is the data of one target and its type.
type form struct {
	kind xproto.Atom
	data []byte
}

// Reads returns how often applications have read the content. Reads of the server for VNC viewers do not count.
func (o *Offer) Reads() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reads
}

// WaitRead returns when the content was read more than n times. It fails when the offer has ended.
func (o *Offer) WaitRead(ctx context.Context, n uint64) error {
	for {
		o.mu.Lock()
		reads, lost, changed := o.reads, o.lost, o.changed
		o.mu.Unlock()
		switch {
		case reads > n:
			return nil
		case lost:
			return errors.New("the selection was replaced before an application read it")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitQuiet returns when applications have stopped requesting the content. A paste sends many requests, before and after the
// read, and fails if the responses change in between. The last request is not marked, so the pause must be a multiple of the
// pauses between earlier requests, and at least minimum. latency is the response time of the application, which counts as such a
// pause.
func (o *Offer) WaitQuiet(ctx context.Context, minimum, latency time.Duration) error {
	for {
		o.mu.Lock()
		rest := time.Until(o.requested.Add(max(minimum, min(quietFactor*max(o.gap, latency), maxQuiet))))
		o.mu.Unlock()
		if rest <= 0 {
			return nil
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// noteRequest records a request of an application.
func (o *Offer) noteRequest(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.requested.IsZero() {
		o.gap = max(o.gap, now.Sub(o.requested))
	}
	o.requested = now
}

func (o *Offer) update(fn func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fn()
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *Offer) end() { o.update(func() { o.lost = true }) }

// selections are the offers of this connection.
type selections struct {
	queue chan xgb.Event

	mu        sync.Mutex
	offers    map[xproto.Atom]*Offer
	transfers map[transferKey]*transfer
}

type transferKey struct {
	window   xproto.Window
	property xproto.Atom
}

// transfer is an incremental transfer of large content.
type transfer struct {
	offer *Offer
	form  form
	sent  int
	used  time.Time
}

func (s *selections) init() {
	s.queue = make(chan xgb.Event, maxRequests)
	s.offers = map[xproto.Atom]*Offer{}
	s.transfers = map[transferKey]*transfer{}
}

// SetSelection offers content to all applications. It offers text under all its usual names.
func (c *Conn) SetSelection(ctx context.Context, sel Selection, content Content) (*Offer, error) {
	total := 0
	for _, b := range content {
		total += len(b)
	}
	switch {
	case len(content) == 0:
		return nil, errors.New("set selection: no content; use ClearSelection to clear it")
	case total > c.cfg.MaxClipboard:
		return nil, fmt.Errorf("set selection: content has %d bytes (limit %d)", total, c.cfg.MaxClipboard)
	case len(content) > maxTargets:
		return nil, fmt.Errorf("set selection: content has %d forms (limit %d)", len(content), maxTargets)
	}
	copied := make(Content, len(content))
	for name, b := range content {
		copied[name] = append([]byte(nil), b...)
	}
	return do(ctx, c, c.owns, func() (*Offer, error) {
		o, err := c.own(ctx, sel, copied)
		if err != nil {
			return nil, fmt.Errorf("set selection: %w", err)
		}
		return o, nil
	})
}

// Offers reports whether an offer is still the content of a selection. It asks the server, whose event about a new owner
// may be late.
func (c *Conn) Offers(ctx context.Context, sel Selection, o *Offer) (bool, error) {
	return do(ctx, c, c.owns, func() (bool, error) {
		selection, err := c.selectionAtom(sel)
		if err != nil {
			return false, err
		}
		c.sel.mu.Lock()
		current := c.sel.offers[selection] == o
		c.sel.mu.Unlock()
		now, err := xproto.GetSelectionOwner(c.x, selection).Reply()
		if err != nil {
			return false, fmt.Errorf("find owner of selection: %w", err)
		}
		return current && now.Owner == c.window, nil
	})
}

// ClearSelection clears a selection of any owner.
func (c *Conn) ClearSelection(ctx context.Context, sel Selection) error {
	_, err := do(ctx, c, c.owns, func() (struct{}, error) {
		selection, err := c.selectionAtom(sel)
		if err == nil {
			err = xproto.SetSelectionOwnerChecked(c.x, 0, selection, xproto.TimeCurrentTime).Check()
		}
		if err != nil {
			return struct{}{}, fmt.Errorf("clear selection: %w", err)
		}
		c.sel.replace(selection, nil)
		return struct{}{}, nil
	})
	return err
}

func (c *Conn) own(ctx context.Context, sel Selection, content Content) (*Offer, error) {
	selection, err := c.selectionAtom(sel)
	if err != nil {
		return nil, err
	}
	o := &Offer{forms: map[xproto.Atom]form{}, changed: make(chan struct{}), pending: true}
	for name, data := range content {
		id, err := c.intern(name)
		if err != nil {
			return nil, err
		}
		o.forms[id] = form{kind: id, data: data}
	}
	if text, ok := content[UTF8Text]; ok {
		c.addTextForms(o, text)
	}
	if o.time, err = c.serverTime(ctx); err != nil {
		return nil, err
	}
	// Requests may arrive before the next call returns, so the offer must exist. An event about an earlier loss may arrive, too. It
	// is ignored while the offer is pending, and the owner is checked after that.
	c.sel.replace(selection, o)
	if err := xproto.SetSelectionOwnerChecked(c.x, c.window, selection, o.time).Check(); err != nil {
		c.sel.release(selection, o)
		return nil, err
	}
	c.sel.mu.Lock()
	o.pending = false
	c.sel.mu.Unlock()
	now, err := xproto.GetSelectionOwner(c.x, selection).Reply()
	if err != nil {
		return nil, err
	}
	if now.Owner != c.window {
		c.sel.release(selection, o)
		return nil, errors.New("another application claimed it at the same time; retry")
	}
	return o, nil
}

// addTextForms adds the targets under which applications request text, unless the caller has set them.
func (c *Conn) addTextForms(o *Offer, text []byte) {
	add := func(target, kind xproto.Atom, data []byte) {
		if _, ok := o.forms[target]; !ok {
			o.forms[target] = form{kind, data}
		}
	}
	add(c.atoms.plainUTF8, c.atoms.plainUTF8, text)
	add(c.atoms.plain, c.atoms.plain, text)
	add(c.atoms.text, c.atoms.utf8, text)
	latin := make([]byte, 0, len(text))
	for _, r := range string(text) {
		if r > 0xff {
			return
		}
		latin = append(latin, byte(r))
	}
	add(xproto.AtomString, xproto.AtomString, latin)
}

// serverTime returns the server's time, which orders the owners of a selection.
func (c *Conn) serverTime(ctx context.Context) (xproto.Timestamp, error) {
	changed := c.expectProperty(c.atoms.transfer, xproto.PropertyNewValue)
	defer c.forget(changed)
	xproto.ChangeProperty(c.x, xproto.PropModeAppend, c.window, c.atoms.transfer, xproto.AtomInteger, 32, 0, nil)
	ev, err := c.await(ctx, changed)
	if err != nil {
		return 0, err
	}
	return ev.(xproto.PropertyNotifyEvent).Time, nil
}

// replace makes o the offer of a selection, and ends the previous one.
func (s *selections) replace(selection xproto.Atom, o *Offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.offers[selection]; old != nil {
		old.end()
	}
	delete(s.offers, selection)
	if o != nil {
		s.offers[selection] = o
	}
}

// release ends o.
func (s *selections) release(selection xproto.Atom, o *Offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offers[selection] == o {
		delete(s.offers, selection)
	}
	o.end()
}
