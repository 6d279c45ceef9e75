package display

import (
	"context"
	"errors"
	"image"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// Programs treat a press, a jump and a release as a click. They must receive the press and the movement in steps before the
// release.
const (
	dragSteps = 20
	dragPause = 12 * time.Millisecond
	dragHold  = 60 * time.Millisecond
)

const (
	// dragStart is how long a program may take to begin a drag after the pointer has arrived. Selecting text does not begin a
	// drag, so every text selection waits this long.
	dragStart = 500 * time.Millisecond
	// dropQuiet is the minimum time for which the pointer's shape must not change before a drop.
	dropQuiet = 250 * time.Millisecond
	// dropTime bounds the wait for a shape that keeps changing.
	dropTime = 6 * time.Second
)

// drag is one movement with the left button down.
type drag struct {
	*player
	from, to image.Point
	idle     uint32        // the drag source before the button went down
	moved    time.Time     // when the pointer began to move
	slow     time.Duration // how long the program takes to handle events
	answer   time.Duration // how long the program took to begin the drag; 0 before that
}

// drag holds the left button from the pointer's position to the one that to returns.
func (p *player) drag(ctx context.Context, to func(from image.Point) image.Point) (err error) {
	from, err := p.Pointer(ctx)
	if err != nil {
		return err
	}
	d := &drag{player: p, from: from, to: to(from)}
	if d.idle, err = p.DragSource(ctx); err != nil {
		return err
	}
	if err := p.Conn.Press(ctx, x11.Left); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.release(ctx, x11.Left)) }()
	if err := d.measure(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, max(dragHold, 2*d.slow)); err != nil {
		return err
	}
	if err := d.move(ctx); err != nil {
		return err
	}
	if err := d.measure(ctx); err != nil {
		return err
	}
	if err := d.awaitStart(ctx, max(dragStart, 8*d.slow)); err != nil || d.answer == 0 {
		return err
	}
	return d.awaitTarget(ctx)
}

// move moves the pointer to its target. Programs begin a drag some time after the pointer starts to move, so it waits for that
// after a quarter of the distance.
func (d *drag) move(ctx context.Context) error {
	distance := d.to.Sub(d.from)
	d.moved = time.Now()
	for i := 1; i <= dragSteps; i++ {
		if err := d.Move(ctx, d.from.Add(distance.Mul(i).Div(dragSteps))); err != nil {
			return err
		}
		if i == dragSteps/4 {
			if err := d.awaitStart(ctx, max(dragHold, 4*d.slow)); err != nil {
				return err
			}
		}
		if err := sleep(ctx, max(dragPause, d.slow/4)); err != nil {
			return err
		}
	}
	return nil
}

// awaitStart waits until the program has begun a drag, at most for the given time.
func (d *drag) awaitStart(ctx context.Context, limit time.Duration) error {
	for begin := time.Now(); d.answer == 0 && time.Since(begin) < limit; {
		source, err := d.DragSource(ctx)
		if err != nil {
			return err
		}
		if source != 0 && source != d.idle {
			d.answer = time.Since(d.moved)
			return nil
		}
		if err := sleep(ctx, dragPause); err != nil {
			return err
		}
	}
	return nil
}

// awaitTarget waits until the program below the pointer has accepted or refused the drop. The source of the drag notices this
// only when the pointer moves, changes the pointer's shape, and cancels a drag that ends before. So the pointer moves back and
// forth by a pixel until its shape has not changed for a multiple of the program's response time.
func (d *drag) awaitTarget(ctx context.Context) error {
	quiet := min(max(dropQuiet, 4*d.answer), dropTime/2)
	begin := time.Now()
	changed, shape := begin, uint32(0)
	for i := 1; time.Since(changed) < quiet && time.Since(begin) < dropTime; i++ {
		if err := d.Move(ctx, d.to.Sub(image.Pt(i%2, 0))); err != nil {
			return err
		}
		if err := sleep(ctx, 2*dragPause); err != nil {
			return err
		}
		now, err := d.CursorSerial(ctx)
		if err != nil {
			return err
		}
		if now != shape {
			changed, shape = time.Now(), now
		}
	}
	if err := d.Move(ctx, d.to); err != nil {
		return err
	}
	return d.measure(ctx)
}

// measure updates the latency of the program.
func (d *drag) measure(ctx context.Context) error {
	took, err := d.latency(ctx)
	d.slow = max(d.slow, took)
	return err
}
