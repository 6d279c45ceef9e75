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
	// pieceSize is what goes into one request; xgb speaks the protocol without big requests, whose limit is 256 KiB.
	pieceSize = 128 << 10
	// maxTransfers bounds the large answers under way.
	maxTransfers = 32
	// transferIdle is how long a reader of a large answer may take between two pieces.
	transferIdle = 30 * time.Second
	// maxQuiet bounds the pause that says that nobody asks any more.
	maxQuiet = 2 * time.Second
	// maxRequests bounds the questions that wait. Who asks more than that at once gets no answer to some.
	maxRequests = 256
)

// Offer is content that this connection holds in a selection, until it is replaced, somebody else puts something there, or
// the connection ends.
type Offer struct {
	time    xproto.Timestamp
	forms   map[xproto.Atom]form
	pending bool // ownership is being asked for; guarded by selections.mu

	mu      sync.Mutex
	reads   uint64
	asked   time.Time     // when an application last asked for something
	gap     time.Duration // the longest time between two questions
	lost    bool
	changed chan struct{} // closed and renewed at every change
}

// form is the data for one target and the type it is sent as.
type form struct {
	kind xproto.Atom
	data []byte
}

// Reads counts how often applications have read the content so far. What the server reads for VNC viewers does not count.
func (o *Offer) Reads() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reads
}

// WaitRead returns when the content was read more than n times. It says so when that cannot happen any more.
func (o *Offer) WaitRead(ctx context.Context, n uint64) error {
	for {
		o.mu.Lock()
		reads, lost, changed := o.reads, o.lost, o.changed
		o.mu.Unlock()
		switch {
		case reads > n:
			return nil
		case lost:
			return errors.New("the selection was replaced before anybody read it")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitQuiet returns when applications have stopped asking about the content. One that pastes asks many questions, before and
// after it reads, and gives up when the answers change in between. There is no sign of the last one, so the pause must be
// several times as long as those between the questions so far, and at least least.
func (o *Offer) WaitQuiet(ctx context.Context, least time.Duration) error {
	for {
		o.mu.Lock()
		rest := time.Until(o.asked.Add(max(least, min(4*o.gap, maxQuiet))))
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

// question notes that an application has asked.
func (o *Offer) question(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.asked.IsZero() {
		o.gap = max(o.gap, now.Sub(o.asked))
	}
	o.asked = now
}

func (o *Offer) update(fn func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fn()
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *Offer) end() { o.update(func() { o.lost = true }) }

// selections is what this connection holds for others.
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

// transfer is a large answer that is sent in pieces, each when the reader has taken the last.
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

// SetSelection offers content to all applications. Text is offered under its other customary names too.
func (c *Conn) SetSelection(ctx context.Context, sel Selection, content Content) (*Offer, error) {
	total := 0
	for _, b := range content {
		total += len(b)
	}
	switch {
	case len(content) == 0:
		return nil, errors.New("set selection: there is no content: use ClearSelection to empty it")
	case total > c.cfg.MaxClipboard:
		return nil, fmt.Errorf("set selection: content has %d bytes, at most %d are offered", total, c.cfg.MaxClipboard)
	case len(content) > maxTargets:
		return nil, fmt.Errorf("set selection: content comes in %d forms, at most %d are offered", len(content), maxTargets)
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

// ClearSelection empties a selection, whoever holds it.
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
	// Questions may come before the next line returns, so the offer is already there. News of an earlier loss may come too;
	// it is disregarded until the offer is no longer pending, and the last question is asked after that.
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
		return nil, errors.New("another application took it at the same moment: try again")
	}
	return o, nil
}

// addTextForms offers text under the names that older and newer applications ask for, unless the caller did.
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

// serverTime asks the server what time it is, as the order between owners is by its clock.
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

// replace makes o what is held in a selection, and ends what was.
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

// release ends o if it is still held.
func (s *selections) release(selection xproto.Atom, o *Offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offers[selection] == o {
		delete(s.offers, selection)
	}
	o.end()
}
