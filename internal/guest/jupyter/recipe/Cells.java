import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.EvalException;
import jdk.jshell.ExpressionSnippet;
import jdk.jshell.JShell;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;
import jdk.jshell.VarSnippet;
import sun.misc.Signal;

/**
 * Runs cells of Java in JShell for java_kernel.py, which starts it with the paths of two pipes: requests, each the length of a cell
 * and the cell, and replies, each a kind, a length and a text. An interrupt stops the running cell.
 */
public class Cells {
    private static final int MAX_CELL = 64 << 20;

    private final JShell shell;
    private final OutputStream replies;
    private volatile boolean running, stopped;

    private Cells(OutputStream replies) {
        this.replies = replies;
        print();
        // The code runs in this process: a second one would double the memory.
        shell = JShell.builder().executionEngine("local").build();
        for (String name : List.of("io", "math", "net", "nio.file", "util", "util.concurrent", "util.function", "util.regex",
                "util.stream")) {
            shell.eval("import java." + name + ".*;");
        }
        // Programs of E2B's clients read variables of the environment as properties.
        System.getenv().forEach((name, value) -> System.getProperties().putIfAbsent(name, value));
    }

    public static void main(String[] args) throws IOException {
        DataInputStream requests = new DataInputStream(new BufferedInputStream(new FileInputStream(args[0])));
        Cells cells = new Cells(new FileOutputStream(args[1]));
        Signal.handle(new Signal("INT"), signal -> cells.stop());
        cells.send('d', "");
        while (true) {
            try {
                byte[] code = new byte[Math.min(requests.readInt(), MAX_CELL)];
                requests.readFully(code);
                cells.run(new String(code, "UTF-8"));
            } catch (EOFException e) {
                System.exit(0); // threads of the code may still run
            }
            cells.send('d', "");
        }
    }

    /** Sends what the code prints. The streams of a stopped cell may have kept a part of its output. */
    private void print() {
        System.setOut(new Printer('o'));
        System.setErr(new Printer('e'));
    }

    private void stop() {
        stopped = running;
        if (running) {
            shell.stop();
        }
    }

    private void run(String code) throws IOException {
        stopped = false;
        running = true;
        try {
            String rest = code;
            while (!rest.isBlank()) {
                CompletionInfo info = shell.sourceCodeAnalysis().analyzeCompletion(rest);
                boolean complete = info.completeness().isComplete();
                String next = complete ? info.remaining() : "";
                if (!eval(complete ? info.source() : rest, next.isBlank())) {
                    return;
                }
                rest = next;
            }
        } finally {
            running = false;
            if (stopped) {
                print();
            }
        }
    }

    /** Evaluates a snippet. Returns whether the cell goes on. */
    private boolean eval(String source, boolean last) throws IOException {
        for (SnippetEvent e : shell.eval(source)) {
            if (e.causeSnippet() != null) {
                continue; // an update of an earlier snippet
            }
            Snippet snippet = e.snippet();
            if (e.status() == Snippet.Status.REJECTED) {
                fail("CompilationError", describe(snippet), describe(snippet) + "\n" + source.strip());
                return false;
            }
            if (e.exception() != null) {
                fail(e.exception());
                return false;
            }
            if (e.status() == Snippet.Status.RECOVERABLE_DEFINED || e.status() == Snippet.Status.RECOVERABLE_NOT_DEFINED) {
                System.err.println("cannot be used until defined: "
                        + shell.unresolvedDependencies((DeclarationSnippet) snippet).collect(Collectors.joining(", ")));
            }
            if (last && !stopped && isResult(snippet) && e.value() != null && !e.value().isEmpty()) {
                send('r', e.value());
            }
        }
        if (stopped) {
            fail("InterruptedException", "the cell was interrupted", "InterruptedException: the cell was interrupted");
        }
        return !stopped;
    }

    /** Reports whether a notebook shows the value: not that of a declaration or an assignment. */
    private static boolean isResult(Snippet snippet) {
        return snippet instanceof ExpressionSnippet && snippet.subKind() != Snippet.SubKind.ASSIGNMENT_SUBKIND
                || snippet instanceof VarSnippet && snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
    }

    private String describe(Snippet snippet) {
        return shell.diagnostics(snippet).map(d -> d.getMessage(Locale.ENGLISH)).collect(Collectors.joining("\n"));
    }

    private void fail(Throwable e) throws IOException {
        String name = e instanceof EvalException ? ((EvalException) e).getExceptionClassName() : e.getClass().getName();
        String message = e.getMessage() == null ? "" : e.getMessage();
        StringBuilder trace = new StringBuilder();
        for (Throwable cause = e; cause != null; cause = cause.getCause()) {
            String label = cause instanceof EvalException ? ((EvalException) cause).getExceptionClassName() : cause.getClass().getName();
            trace.append(cause == e ? "" : "Caused by: ").append(label);
            trace.append(cause.getMessage() == null ? "" : ": " + cause.getMessage()).append('\n');
            for (StackTraceElement at : cause.getStackTrace()) {
                // JShell gives the frames of a snippet no class.
                trace.append("\tat ").append(at.toString().replaceFirst("^\\.(?=\\()", "cell").replaceFirst("^\\.", "")).append('\n');
            }
        }
        fail(name, message, trace.toString());
    }

    private void fail(String name, String message, String trace) throws IOException {
        send('x', name + "\0" + message + "\0" + trace);
    }

    private void send(char kind, String text) throws IOException {
        send(kind, text.getBytes("UTF-8"));
    }

    /** Writes a reply at once: an interrupt, which ends a thread, leaves none incomplete. */
    private void send(char kind, byte[] text) throws IOException {
        byte[] all = ByteBuffer.allocate(5 + text.length).put((byte) kind).putInt(text.length).put(text).array();
        synchronized (replies) {
            replies.write(all);
        }
    }

    /** A stream without a buffer. As a subclass, it writes the end of a line separately, as clients of other Java kernels expect. */
    private class Printer extends PrintStream {
        Printer(char kind) {
            super(new OutputStream() {
                @Override
                public void write(int b) throws IOException {
                    send(kind, new byte[] {(byte) b});
                }

                @Override
                public void write(byte[] b, int from, int length) throws IOException {
                    send(kind, java.util.Arrays.copyOfRange(b, from, from + length));
                }
            }, true);
        }
    }
}
