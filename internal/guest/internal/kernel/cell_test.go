package kernel

import (
	"encoding/json"
	"testing"
	"time"
)

func TestStreams(t *testing.T) {
	outputs := []Output{
		{Type: Stream, Name: "stdout", Text: "a"},
		{Type: Stream, Name: "stderr", Text: "b\n"},
		{Type: Error, Traceback: []string{"c", "d"}},
		{Type: Stream, Name: "stdout", Text: "e"},
	}
	for errors, want := range map[bool]string{false: "b\n", true: "b\nc\nd\n"} {
		if stdout, stderr := Streams(outputs, errors); stdout != "ae" || stderr != want {
			t.Errorf("errors %v: got %q and %q, want %q and %q", errors, stdout, stderr, "ae", want)
		}
	}
}

func TestOutputFields(t *testing.T) {
	for want, o := range map[string]Output{
		`{"output_type":"stream","name":"stdout","text":"x","data":null,"metadata":null,"ename":null,"evalue":null,` +
			`"traceback":null}`: {Type: Stream, Name: "stdout", Text: "x"},
		`{"output_type":"error","name":null,"text":null,"data":null,"metadata":null,"ename":"E","evalue":"v",` +
			`"traceback":["t"]}`: {Type: Error, EName: "E", EValue: "v", Traceback: []string{"t"}},
		`{"output_type":"execute_result","name":null,"text":null,"data":{"a":1},"metadata":{},"ename":null,` +
			`"evalue":null,"traceback":null}`: {Type: ExecuteResult, Data: map[string]any{"a": 1}, Metadata: map[string]any{}},
		`{"output_type":"clear_output","name":null,"text":null,"data":null,"metadata":null,"ename":null,` +
			`"evalue":null,"traceback":null}`: {Type: ClearOutput},
	} {
		var w struct {
			StreamFields
			DataFields
			ErrorFields
		}
		w.StreamFields, w.DataFields, w.ErrorFields = OutputFields(o)
		got, err := json.Marshal(w)
		if err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestTimeout(t *testing.T) {
	for seconds, want := range map[int]string{0: "30 seconds", -1: "30 seconds", 1: "1 second", 90: "90 seconds"} {
		if got := FormatDuration(TimeoutOf(seconds)); got != want {
			t.Errorf("%d: got %q, want %q", seconds, got, want)
		}
	}
	if got, want := FormatDuration(1500*time.Millisecond), "1.5 seconds"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadiness(t *testing.T) {
	for want, r := range map[string]Readiness{"idle": {}, "ready": {Used: true}, "failed": {Used: true, Fault: "why"}} {
		if got, why := r.State(); got != want || (want == "failed") != (why == "why") {
			t.Errorf("%+v: got %s (%s), want %s", r, got, why, want)
		}
	}
}
