package browser

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
)

// pack returns a resource file.
func pack(resources ...[]byte) []byte {
	file := binary.LittleEndian.AppendUint32(nil, packVersion)
	file = append(file, 1, 0, 0, 0)
	file = binary.LittleEndian.AppendUint16(file, uint16(len(resources)))
	file = append(file, 0, 0)
	at := packHead + (len(resources)+1)*packEntry
	for i := range len(resources) + 1 {
		file = binary.LittleEndian.AppendUint16(file, uint16(i))
		file = binary.LittleEndian.AppendUint32(file, uint32(at))
		if i < len(resources) {
			at += len(resources[i])
		}
	}
	return append(file, bytes.Join(resources, nil)...)
}

// compress returns a resource as Chromium compresses it.
func compress(t testing.TB, text string) []byte {
	t.Helper()
	size := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	out := bytes.NewBuffer(append(bytes.Clone(compressed), size[:6]...))
	w := brotli.NewWriter(out)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestProtocolIsFoundByItsContent(t *testing.T) {
	t.Parallel()
	want := `{"version": {}, "domains": [` + strings.Repeat(" ", minProtocol) + `]}`
	other := compress(t, strings.Repeat("not it ", minProtocol))
	got, err := findProtocol(bytes.NewReader(pack([]byte("plain"), nil, other, compress(t, want), other)))
	if err != nil || string(got) != want {
		t.Errorf("found %d bytes, %v, want %d", len(got), err, len(want))
	}
	if _, err := findProtocol(bytes.NewReader(pack([]byte("plain"), other))); err == nil {
		t.Error("found a description in a file without one")
	}
}

func FuzzFindProtocol(f *testing.F) {
	f.Add(pack([]byte("plain"), compress(f, `{"domains": [`+strings.Repeat(" ", minProtocol)+`]}`)))
	f.Add(pack())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, file []byte) {
		if text, err := findProtocol(bytes.NewReader(file)); err == nil && !bytes.Contains(text, []byte(`"domains"`)) {
			t.Errorf("found %.100q, want a description of the protocol", text)
		}
	})
}
