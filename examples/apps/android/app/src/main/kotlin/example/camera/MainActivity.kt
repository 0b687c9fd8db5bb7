package example.camera

import android.Manifest
import android.content.pm.PackageManager
import android.os.Bundle
import android.view.Gravity
import android.widget.FrameLayout
import android.widget.TextView
import androidx.activity.ComponentActivity
import androidx.activity.result.ActivityResultCallback
import androidx.activity.result.contract.ActivityResultContracts
import androidx.camera.core.CameraSelector
import androidx.camera.core.ImageAnalysis
import androidx.camera.core.ImageProxy
import androidx.camera.core.Preview
import androidx.camera.lifecycle.ProcessCameraProvider
import androidx.camera.view.PreviewView
import com.example.mobilenet.Models
import java.util.concurrent.ExecutionException
import java.util.concurrent.Executor
import java.util.concurrent.Executors
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.launch
import tvmflow.awaitOpen

/** Shows the camera image with the network's classes on top. Frames that arrive while one is processed are dropped. */
class MainActivity : ComponentActivity() {
    private val worker = Executors.newSingleThreadExecutor()
    private val job = Job()
    private lateinit var view: PreviewView
    private lateinit var text: TextView
    private var classifier: FrameClassifier? = null // of the main thread until frames come, then of the worker

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        view = PreviewView(this)
        text = TextView(this)
        val layout = FrameLayout(this)
        layout.addView(view)
        layout.addView(text, FrameLayout.LayoutParams(-1, -2, Gravity.BOTTOM))
        setContentView(layout)
        if (checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            start()
            return
        }
        val granted = ActivityResultCallback<Boolean> { if (it) start() else show("no camera without your permission") }
        registerForActivityResult(ActivityResultContracts.RequestPermission(), granted).launch(Manifest.permission.CAMERA)
    }

    private fun start() {
        CoroutineScope(Dispatchers.Main + job).launch {
            try {
                classifier = FrameClassifier(Models.MOBILENET.awaitOpen(codeCacheDir.path))
            } catch (error: RuntimeException) {
                show(error.toString())
                return@launch
            }
            val provider = ProcessCameraProvider.getInstance(this@MainActivity)
            provider.addListener(Runnable { bind(provider::get) }, Executor { runOnUiThread(it) })
        }
    }

    private fun bind(provider: () -> ProcessCameraProvider) {
        val preview = Preview.Builder().build()
        preview.setSurfaceProvider(view.surfaceProvider)
        val frames =
            ImageAnalysis.Builder()
                .setBackpressureStrategy(ImageAnalysis.STRATEGY_KEEP_ONLY_LATEST)
                .setOutputImageFormat(ImageAnalysis.OUTPUT_IMAGE_FORMAT_RGBA_8888)
                .setOutputImageRotationEnabled(true)
                .build()
        frames.setAnalyzer(worker, ImageAnalysis.Analyzer { look(it) })
        try {
            provider().bindToLifecycle(this, CameraSelector.DEFAULT_BACK_CAMERA, preview, frames)
        } catch (error: ExecutionException) {
            show("no camera: ${error.message}")
        } catch (error: IllegalArgumentException) {
            show("no camera: ${error.message}")
        }
    }

    private fun look(frame: ImageProxy) {
        try {
            val pixels = frame.planes[0]
            show(classifier?.describe(pixels.buffer, frame.width, frame.height, pixels.rowStride) ?: "")
        } catch (error: RuntimeException) {
            show(error.toString())
        } finally {
            frame.close()
        }
    }

    private fun show(words: String) = runOnUiThread { text.text = words }

    override fun onDestroy() {
        super.onDestroy()
        job.cancel()
        worker.execute { classifier?.close() }
        worker.shutdown()
    }
}
