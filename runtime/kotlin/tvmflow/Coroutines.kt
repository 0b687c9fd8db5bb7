package tvmflow

import java.nio.ByteBuffer
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.withContext

/** Open a network on a dispatcher's thread. A caller that is cancelled meanwhile leaves no instance behind. See [Model.open]. */
suspend fun Model.awaitOpen(programs: String? = null, on: CoroutineDispatcher = Dispatchers.Default): Network {
    var opened: Network? = null
    try {
        return withContext(on) { open(programs).also { opened = it } }
    } catch (error: Throwable) {
        opened?.close()
        throw error
    }
}

/** Run once on a dispatcher's thread; do not use the buffers until it returns. A run that has begun is not interrupted. See [Network.run]. */
suspend fun Network.awaitRun(
    inputs: Array<ByteBuffer>,
    outputs: Array<ByteBuffer>,
    on: CoroutineDispatcher = Dispatchers.Default
) = withContext(on) { run(inputs, outputs) }

/** Return the k likeliest classes of an image, found on a dispatcher's thread. See [Network.classify]. */
suspend fun Network.awaitClassify(
    pixels: ByteBuffer,
    width: Int,
    height: Int,
    stride: Int = 0,
    format: Network.Format = Network.Format.RGBA,
    k: Int = 1,
    on: CoroutineDispatcher = Dispatchers.Default
): List<Network.Guess> = withContext(on) { classify(pixels, width, height, stride, format, k) }
