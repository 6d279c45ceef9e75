package x11

import (
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// enqueue queues events about selections. It never blocks.
func (s *selections) enqueue(ev xgb.Event) {
	switch e := ev.(type) {
	case xproto.PropertyNotifyEvent:
		if !s.transferring(e.Window) {
			return
		}
	case xproto.DestroyNotifyEvent:
		if !s.transferring(e.Window) {
			return
		}
	}
	select {
	case s.queue <- ev:
	default:
	}
}

func (s *selections) transferring(w xproto.Window) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.transfers {
		if key.window == w {
			return true
		}
	}
	return false
}

// serveSelections responds to requests of applications until the connection ends.
func (c *Conn) serveSelections() {
	sweep := time.NewTicker(transferIdle / 3)
	defer sweep.Stop()
	defer c.sel.endAll()
	for {
		select {
		case <-c.done:
			return
		case now := <-sweep.C:
			c.sel.expire(now)
		case ev := <-c.sel.queue:
			switch e := ev.(type) {
			case xproto.SelectionRequestEvent:
				c.respond(e)
			case xproto.SelectionClearEvent:
				c.checkOwner(e.Selection)
			case xproto.PropertyNotifyEvent:
				c.sendPiece(transferKey{e.Window, e.Atom})
			case xproto.DestroyNotifyEvent:
				c.sel.abandon(e.Window)
			}
		}
	}
}

// respond stores the requested form in the requestor's property and notifies it, or refuses.
func (c *Conn) respond(req xproto.SelectionRequestEvent) {
	property := req.Property
	if property == 0 {
		property = req.Target // of obsolete clients
	}
	note := xproto.SelectionNotifyEvent{
		Time: req.Time, Requestor: req.Requestor, Selection: req.Selection, Target: req.Target, Property: property,
	}
	c.sel.mu.Lock()
	offer := c.sel.offers[req.Selection]
	c.sel.mu.Unlock()
	var read bool
	switch {
	case offer == nil:
		note.Property = 0
	case req.Target == c.atoms.targets:
		list := appendAtoms(nil, c.atoms.targets, c.atoms.timestamp)
		for target := range offer.forms {
			list = appendAtoms(list, target)
		}
		c.put(req.Requestor, property, xproto.AtomAtom, 32, list)
	case req.Target == c.atoms.timestamp:
		c.put(req.Requestor, property, xproto.AtomInteger, 32, appendAtoms(nil, xproto.Atom(offer.time)))
	default:
		f, ok := offer.forms[req.Target]
		switch {
		case !ok:
			note.Property = 0
		case len(f.data) <= pieceSize:
			c.put(req.Requestor, property, f.kind, 8, f.data)
			read = true
		case !c.startTransfer(transferKey{req.Requestor, property}, offer, f):
			note.Property = 0
		}
	}
	xproto.SendEvent(c.x, false, req.Requestor, xproto.EventMaskNoEvent, string(note.Bytes()))
	if offer != nil && c.isApplication(req.Requestor) {
		offer.noteRequest(time.Now())
		if read {
			offer.update(func() { offer.reads++ })
		}
	}
}

// idBits are the bits of an ID; the upper bits are flags.
const idBits = 1<<29 - 1

// isApplication distinguishes applications from the server itself, which reads for VNC viewers, and from this connection.
func (c *Conn) isApplication(w xproto.Window) bool { return uint32(w)&c.others != 0 && w != c.window }

func appendAtoms(b []byte, atoms ...xproto.Atom) []byte {
	for _, a := range atoms {
		b = append(b, byte(a), byte(a>>8), byte(a>>16), byte(a>>24))
	}
	return b
}

func (c *Conn) put(w xproto.Window, property, kind xproto.Atom, format byte, data []byte) {
	xproto.ChangeProperty(c.x, xproto.PropModeReplace, w, property, kind, format, uint32(len(data))/uint32(format/8), data)
}

// startTransfer begins an incremental transfer. The reader deletes the property after each piece.
func (c *Conn) startTransfer(key transferKey, o *Offer, f form) bool {
	c.sel.mu.Lock()
	full := len(c.sel.transfers) >= maxTransfers
	if !full {
		c.sel.transfers[key] = &transfer{offer: o, form: f, used: time.Now()}
	}
	c.sel.mu.Unlock() // before sending: the pump locks it, and must not wait for the server
	if full {
		return false
	}
	mask := uint32(xproto.EventMaskPropertyChange | xproto.EventMaskStructureNotify)
	xproto.ChangeWindowAttributes(c.x, key.window, xproto.CwEventMask, []uint32{mask})
	c.put(key.window, key.property, c.atoms.incr, 32, appendAtoms(nil, xproto.Atom(len(f.data))))
	return true
}

// sendPiece sends the next piece after the property was deleted. An empty piece ends the transfer.
func (c *Conn) sendPiece(key transferKey) {
	c.sel.mu.Lock()
	t := c.sel.transfers[key]
	c.sel.mu.Unlock()
	if t == nil {
		return
	}
	n := min(pieceSize, len(t.form.data)-t.sent)
	c.put(key.window, key.property, t.form.kind, 8, t.form.data[t.sent:t.sent+n])
	t.sent += n
	t.used = time.Now()
	if n > 0 {
		return
	}
	c.sel.mu.Lock()
	delete(c.sel.transfers, key)
	c.sel.mu.Unlock()
	if key.window != c.window && !c.sel.transferring(key.window) {
		xproto.ChangeWindowAttributes(c.x, key.window, xproto.CwEventMask, []uint32{xproto.EventMaskNoEvent})
	}
	if c.isApplication(key.window) {
		t.offer.noteRequest(t.used)
		t.offer.update(func() { t.offer.reads++ })
	}
}

// checkOwner ends an offer that another application has replaced. It queries the owner, because the event may be older than the
// latest offer.
func (c *Conn) checkOwner(selection xproto.Atom) {
	c.sel.mu.Lock()
	offer := c.sel.offers[selection]
	settled := offer != nil && !offer.pending
	c.sel.mu.Unlock()
	if !settled {
		return
	}
	now, err := xproto.GetSelectionOwner(c.x, selection).Reply()
	if err == nil && now.Owner != c.window {
		c.sel.release(selection, offer)
	}
}

// expire removes transfers whose reader has stopped.
func (s *selections) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, t := range s.transfers {
		if now.Sub(t.used) > transferIdle {
			delete(s.transfers, key)
		}
	}
}

// abandon removes the transfers to a closed window.
func (s *selections) abandon(w xproto.Window) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.transfers {
		if key.window == w {
			delete(s.transfers, key)
		}
	}
}

// endAll ends all offers and transfers.
func (s *selections) endAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.offers {
		o.end()
	}
	clear(s.offers)
	clear(s.transfers)
}
