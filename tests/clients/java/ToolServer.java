import java.io.BufferedInputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools in one JVM, one after the other: most of the CPU time of a tool is that of a
 * JVM which loads and compiles its classes.
 *
 * Arguments: the jars of the tools. Their classes are loaded anew for each run, for some keep counts
 * in statics; those of the class path stay.
 *
 * Standard input: the number of words, the words (a main class and its arguments), the length of
 * the tool's standard input, and that. Standard output: the exit code, then length and bytes of what
 * the tool wrote to its standard output and error. Ends with its standard input.
 */
public final class ToolServer {
    private static final int NONE = Integer.MIN_VALUE;
    private static final Redirected OUT = new Redirected();
    private static final Redirected ERR = new Redirected();

    private ToolServer() {
    }

    /**
     * Unwinds a tool that calls Exit.exit, so that it closes its clients. Some take it for a failure
     * and say so, where a JVM would have ended: what they write after their exit is dropped.
     */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /**
     * What is written between the last `take` and `end`. One for all runs, since loggers keep the
     * stream that they find first.
     */
    private static final class Redirected extends OutputStream {
        private final ByteArrayOutputStream written = new ByteArrayOutputStream();
        private boolean ended;

        @Override
        public synchronized void write(int value) {
            if (!ended) {
                written.write(value);
            }
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) {
            if (!ended) {
                written.write(bytes, from, count);
            }
        }

        synchronized void end() {
            ended = true;
        }

        synchronized byte[] take() {
            byte[] bytes = written.toByteArray();
            written.reset();
            ended = false;
            return bytes;
        }
    }

    public static void main(String[] jars) throws IOException {
        URL[] tools = new URL[jars.length];
        for (int index = 0; index < jars.length; index++) {
            tools[index] = Path.of(jars[index]).toUri().toURL();
        }
        DataInputStream requests = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream answers = new DataOutputStream(new FileOutputStream(FileDescriptor.out));
        System.setOut(new PrintStream(OUT, true));
        System.setErr(new PrintStream(ERR, true));
        while (true) {
            int count;
            try {
                count = requests.readInt();
            } catch (EOFException end) {
                return;
            }
            String main = requests.readUTF();
            String[] arguments = new String[count - 1];
            for (int index = 0; index < arguments.length; index++) {
                arguments[index] = requests.readUTF();
            }
            System.setIn(new ByteArrayInputStream(requests.readNBytes(requests.readInt())));
            int code = run(tools, main, arguments);
            ByteArrayOutputStream answer = new ByteArrayOutputStream();
            DataOutputStream fields = new DataOutputStream(answer);
            fields.writeInt(code);
            for (Redirected stream : List.of(OUT, ERR)) {
                byte[] written = stream.take();
                fields.writeInt(written.length);
                fields.write(written);
            }
            answer.writeTo(answers);
            answers.flush();
        }
    }

    /**
     * Run what a tool has left for the end of its JVM with the runtime itself: some tools do, for they
     * are older than Exit.addShutdownHook. Others' hooks, such as those of loggers, have other names.
     */
    private static void endHooksOfTheRuntime() {
        for (Thread hook : hooksOfTheRuntime()) {
            if (hook.getName().endsWith("-shutdown-hook")) {
                Runtime.getRuntime().removeShutdownHook(hook);
                hook.run();
            }
        }
    }

    private static List<Thread> hooksOfTheRuntime() {
        try {
            Class<?> keeper = Class.forName("java.lang.ApplicationShutdownHooks");
            Field field = keeper.getDeclaredField("hooks");
            field.setAccessible(true);
            synchronized (keeper) {
                List<Thread> hooks = new ArrayList<>();
                ((Map<?, ?>) field.get(null)).keySet().forEach(hook -> hooks.add((Thread) hook));
                return hooks;
            }
        } catch (ReflectiveOperationException missing) {
            throw new IllegalStateException(missing);
        }
    }

    /** The exit code of a tool, as `java main arguments` would have it. */
    private static int run(URL[] tools, String main, String[] arguments) throws IOException {
        AtomicInteger code = new AtomicInteger(NONE);
        List<Runnable> hooks = new ArrayList<>();
        Exit.Procedure exit = (status, message) -> {
            code.compareAndSet(NONE, status);
            OUT.end();
            ERR.end();
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        try (URLClassLoader loader = new URLClassLoader(tools, ToolServer.class.getClassLoader())) {
            Thread.currentThread().setContextClassLoader(loader);
            try {
                Class<?> tool = loader.loadClass(main);
                tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (InvocationTargetException failed) {
                if (!(failed.getCause() instanceof Exited)) {
                    failed.getCause().printStackTrace();
                    code.compareAndSet(NONE, 1);
                }
            } catch (ReflectiveOperationException missing) {
                missing.printStackTrace();
                code.compareAndSet(NONE, 1);
            }
            hooks.forEach(Runnable::run);
            endHooksOfTheRuntime();
        }
        code.compareAndSet(NONE, 0);
        return code.get();
    }
}
